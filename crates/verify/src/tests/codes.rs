//! The arithmetic here against the codec's, which is byte-equal to the libraries it is named after.

use ashlar_codec::{Code as Theirs, CodeKind};

use crate::code::Code;

#[test]
fn every_code_is_the_codecs() {
    let shapes = [
        (1, 0),
        (1, 1),
        (1, 3),
        (2, 1),
        (3, 1),
        (3, 2),
        (4, 2),
        (5, 3),
        (8, 2),
        (8, 3),
        (8, 16),
        (10, 9),
        (20, 4),
        (40, 10),
        (80, 20),
        (128, 128),
        (200, 40),
        (255, 1),
    ];
    let mut compared = 0;
    for tag in 1..=6 {
        let kind = CodeKind::from_tag(tag).unwrap();
        for (k, m) in shapes {
            let theirs = Theirs::new(kind, k, m);
            let ours = Code::new(tag, k, m);
            assert_eq!(theirs.is_ok(), ours.is_some(), "code {tag} {k}+{m}");
            let (Ok(theirs), Some(ours)) = (theirs, ours) else {
                continue;
            };
            let data: Vec<Vec<u8>> = (0..k)
                .map(|j| {
                    (0..168)
                        .map(|b| ((b * 29 + j * 83 + 7) % 256) as u8)
                        .collect()
                })
                .collect();
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut expected = vec![vec![0; 168]; m];
            let mut out: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
            theirs.encode(&data, &mut out);
            let known: Vec<(usize, &[u8])> = data.iter().copied().enumerate().collect();
            let parity: Vec<usize> = (k..k + m).collect();
            assert_eq!(
                ours.decode(&known, &parity).unwrap(),
                expected,
                "code {tag} {k}+{m}"
            );
            compared += m;
        }
    }
    assert!(compared > 800, "{compared}");
}
