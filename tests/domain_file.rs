//! Failure domains that `create` takes from a file.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;

fn line<'a>(file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let line = ["create", "t", "--layout", "ec1+1", "--file-size", "64M"];
    let devices = ["a-0.img", "a-1.img", "b-0.img", "b-1.img"];
    let file = ["--domain-file", file];
    let all = line.into_iter().chain(file).chain(more.iter().copied());
    all.chain(devices).collect()
}

#[test]
fn a_file_says_in_which_domain_each_device_is() {
    let daemon = Daemon::start("domain-file");
    let write = |text: &str| std::fs::write(daemon.path("domains"), text).unwrap();
    let file = daemon.text("domains");

    write("a-?.img left\n");
    let (error, code) = daemon.fails(&line(&file, &[]));
    assert!(
        code == 2 && error.contains("no line matches b-0.img"),
        "{error}"
    );
    write("# shelves\na-?.img left\nb-0.img\n");
    let (error, code) = daemon.fails(&line(&file, &[]));
    assert!(
        code == 2 && error.contains("domains:3: a line is"),
        "{error}"
    );
    let (error, code) = daemon.fails(&line("/no/such/file", &[]));
    assert!(
        code == 2 && error.contains("/no/such/file: cannot be read"),
        "{error}"
    );
    assert!(!daemon.path("a-0.img").exists(), "nothing was made");

    write(&format!(
        "# shelves\na-?.img left\n{}/b-* right # by path\n/dev/sd* other\n",
        daemon.text("").trim_end_matches('/')
    ));
    daemon.ok(&line(&file, &["--domain", "b-1.img=third"]));
    let status = daemon.status("t");
    let devices = status["devices"].as_array().unwrap();
    let domains: Vec<&str> = devices
        .iter()
        .map(|d| d["domain"].as_str().unwrap())
        .collect();
    assert_eq!(domains, ["left", "left", "right", "third"]);
}
