//! What the examples ask of the machine: large pages, and the time a thread has had a processor.

use std::time::Duration;

/// Asks for large pages, as far as whole ones fit: what the processor looks up for each page is then not
/// what is measured.
#[allow(unsafe_code, reason = "advice about memory that is ours")]
pub fn large_pages(memory: &mut [u8]) {
    let skip = memory.as_ptr().align_offset(4096).min(memory.len());
    let whole = &mut memory[skip..];
    let len = whole.len() / 4096 * 4096;
    if len == 0 {
        return;
    }
    // SAFETY: the pages are within the slice, and this advice changes no contents.
    let asked = unsafe {
        rustix::mm::madvise(
            whole.as_mut_ptr().cast(),
            len,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
    if let Err(error) = asked {
        eprintln!("no large pages: {error}");
    }
}

/// Time that this thread has spent on a processor.
pub fn on_processor() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
