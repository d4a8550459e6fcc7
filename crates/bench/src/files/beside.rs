//! Programs of others beside our own tests, under the same load.
//!
//! **Invariants**: their figures are held against the same counters as ours; a program that fails gives a reason and no
//! figure, and stops nothing.

use std::path::Path;

use super::judge;
use super::load::{Test, Work};
use super::parallel;
use super::session::{METADATA, Session};
use super::tools::{self, Said, Tool};
use super::watch::{Looked, look};
use crate::report::Sample;

impl Session {
    /// fio, IOR or elbencho, a test at a time. What it does not do is a sample without a figure, with the reason.
    pub(super) fn by_test(&self, tool: Tool, run: u32, folder: &Path, samples: &mut Vec<Sample>) {
        let work = self.work(folder, run, &|index| tool.file(index));
        let target = self.target(tool);
        let mut looked = None;
        for test in &self.options.tests {
            let foreign = self.settle(&work.files);
            let mark = self.mark();
            let said = said_by(tool, *test, &work, folder);
            let seconds = mark.at.elapsed().as_secs_f64();
            let mut seen = self.seen(&mark, test.writes(), self.data_bytes(), seconds, &foreign);
            seen.fetched = None; // of another process
            let looked = *looked.get_or_insert_with(|| look(&work));
            let mut sample = self.sample(&target, test.name(), run, &mark, &seen);
            sample.invalid = judge::invalid(&self.facts(looked, &foreign), &seen);
            sample.warnings.extend(judge::warnings(&seen));
            say(&mut sample, said);
            samples.push(sample);
        }
    }

    /// mdtest: operations on metadata, in a suite of their own. What of it reached a device nobody can tell.
    pub(super) fn mdtest(&self, run: u32, folder: &Path, samples: &mut Vec<Sample>) {
        let tasks = self.options.threads;
        let foreign = self.settle(&[]);
        let mark = self.mark();
        let line = parallel::mdtest_line(tasks, folder);
        let said = tools::run_program(Tool::Mdtest, &line[0], &line[1..], folder)
            .and_then(|text| parallel::mdtest_said(tasks, &text));
        let seconds = mark.at.elapsed().as_secs_f64();
        let seen = self.seen(&mark, true, 0, seconds, &foreign);
        let sample = |workload: &str| {
            let mut sample = self.sample(&self.target(Tool::Mdtest), workload, run, &mark, &seen);
            sample.suite = METADATA.to_string();
            sample.device_bytes_per_host_byte = None;
            // Many small files, none of them data: only what others did speaks against it.
            sample.invalid = judge::disturbed(&self.facts(Looked::default(), &foreign), &seen);
            let cached =
                "metadata: a file system may answer from its caches, and nothing is synced";
            sample.warnings.push(cached.to_string());
            sample
        };
        match said {
            Ok(rates) => samples.extend(rates.into_iter().map(|(name, rate)| Sample {
                operations_per_second: Some(rate),
                ..sample(name)
            })),
            Err(reason) => samples.push(Sample {
                invalid: vec![reason],
                ..sample("create")
            }),
        }
    }

    /// IOzone, all tests in one run: devices are held against the sum of what it asks.
    pub(super) fn iozone(&self, run: u32, folder: &Path, samples: &mut Vec<Sample>) {
        let tests = &self.options.tests;
        let work = self.work(folder, run, &|index| Tool::Iozone.file(index));
        let foreign = self.settle(&[]);
        let mark = self.mark();
        let line = tools::iozone_line(tests, &work, folder);
        let text = tools::run(Tool::Iozone, &line, folder);
        let seconds = mark.at.elapsed().as_secs_f64();
        // Each number is two tests, and without files there is nothing to read.
        let runs = |test: &&Test| {
            let number = test.number();
            number == "0" || tests.iter().any(|asked| asked.number() == number)
        };
        let ran: Vec<&Test> = Test::ALL.iter().filter(runs).collect();
        let looked = look(&work);
        for test in tests {
            let count = ran
                .iter()
                .filter(|ran| ran.writes() == test.writes())
                .count() as u64;
            let asked = count * self.data_bytes();
            let mut seen = self.seen(&mark, test.writes(), asked, seconds, &foreign);
            seen.fetched = None;
            let mut sample =
                self.sample(&self.target(Tool::Iozone), test.name(), run, &mark, &seen);
            sample.invalid = judge::invalid(&self.facts(looked, &foreign), &seen);
            let said = text.clone().and_then(|text| {
                tools::iozone_said(*test, &text).ok_or("iozone gave no figure".to_string())
            });
            say(&mut sample, said);
            samples.push(sample);
        }
    }

    fn target(&self, tool: Tool) -> String {
        match self.options.label.as_str() {
            "files" => tool.name().to_string(),
            label => format!("{label} {}", tool.name()),
        }
    }
}

/// Runs a test of fio, IOR or elbencho: what it says of it.
fn said_by(tool: Tool, test: Test, work: &Work, folder: &Path) -> Result<Said, String> {
    if tool == Tool::Fio {
        let line = tools::fio_line(test, work, folder);
        return tools::run(tool, &line, folder).and_then(|text| tools::fio_said(test, &text));
    }
    let line = parallel::line(tool, test, work, folder);
    tools::run_program(tool, &line[0], &line[1..], folder)
        .and_then(|text| parallel::said(tool, test, work, &text))
}

/// Puts what a program says into a sample, or why it says nothing.
pub(super) fn say(sample: &mut Sample, said: Result<Said, String>) {
    match said {
        Ok(said) => {
            sample.bytes_per_second = Some(said.bytes_per_second);
            sample.mean_us = said.mean_us;
            sample.p99_us = said.p99_us;
        }
        Err(reason) => sample.invalid = vec![reason],
    }
}
