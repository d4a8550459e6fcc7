//! A job on the processor.
//!
//! **Invariants**: this is what every other way to run a job is compared with; it uses the codec and the
//! digest crates as the rest of the program does.

use ashlar_codec::Stripe;

use crate::job::{Digests, Form, Of, Piece, Plan};

/// Digests of a job: those of the messages, and the roots of the strips if a tree was asked for.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) digests: Vec<u8>,
    pub(crate) roots: Vec<u8>,
}

/// Runs a job.
pub(crate) fn run(plan: &Plan, write: &mut [Box<dyn Piece>]) -> Found {
    let strip = plan.shape.strip;
    let read = plan.strips();
    let mut written: Vec<&mut [u8]> = write
        .iter_mut()
        .flat_map(|piece| piece.bytes().chunks_exact_mut(strip))
        .collect();
    if let Some(coding) = &plan.coding
        && coding.rows() > 0
    {
        let reads = read.chunks_exact(coding.k());
        let writes = written.chunks_exact_mut(coding.rows());
        let mut stripes: Vec<Stripe<'_, '_>> = reads
            .zip(writes)
            .map(|(read, write)| Stripe { read, write })
            .collect();
        coding.run(&mut stripes);
    }
    let Some(digests) = &plan.digests else {
        return Found::default();
    };
    let mut strips: Vec<&[u8]> = Vec::new();
    if digests.of != Of::Written {
        strips.extend(&read);
    }
    if digests.of != Of::Read {
        strips.extend(written.iter().map(|strip| &**strip));
    }
    find(digests, plan.shape.per_strip, &strips)
}

fn find(digests: &Digests, per_strip: usize, strips: &[&[u8]]) -> Found {
    let size = digests.function.bytes();
    let mut found = Found {
        digests: vec![0; strips.len() * per_strip * size],
        roots: Vec::new(),
    };
    let blocks = strips.iter().flat_map(|strip| strip.chunks(digests.block));
    let out = &mut found.digests;
    match &digests.form {
        Form::Plain => {
            for (block, out) in blocks.zip(out.chunks_exact_mut(size)) {
                digests.function.plain(block, &[], out);
            }
        }
        Form::Suffixed { suffixes, each } => {
            for ((number, block), out) in blocks.enumerate().zip(out.chunks_exact_mut(size)) {
                let suffix = &suffixes[number * each..][..*each];
                digests.function.plain(block, suffix, out);
            }
        }
        Form::Keyed {
            key,
            contexts,
            each,
            lengths,
        } => {
            let context = |number: usize| {
                let long = lengths.as_ref().map(|all| usize::from(all[number]));
                &contexts[number * each..][..long.unwrap_or(*each)]
            };
            let messages = blocks.enumerate().map(|(n, block)| (context(n), block));
            digests
                .function
                .keyed(key, &messages.collect::<Vec<_>>(), out);
        }
    }
    if let Some(fan) = digests.tree {
        for leaves in found.digests.chunks_exact(per_strip * size) {
            found.roots.extend(root(digests, fan, leaves));
        }
    }
    found
}

fn root(digests: &Digests, fan: usize, leaves: &[u8]) -> Vec<u8> {
    let size = digests.function.bytes();
    let (mut nodes, mut level) = (leaves.to_vec(), 0u64);
    while nodes.len() > size {
        level += 1;
        let above = nodes.chunks(fan * size).flat_map(|children| {
            let mut out = vec![0; size];
            let label = level.to_le_bytes();
            match &digests.form {
                Form::Keyed { key, .. } => {
                    digests
                        .function
                        .keyed(key, &[(&label[..], children)], &mut out);
                }
                _ => digests.function.plain(children, &label, &mut out),
            }
            out
        });
        nodes = above.collect();
    }
    nodes
}
