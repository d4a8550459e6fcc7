//! What is to be done with which bytes.
//!
//! A job's *input* is the bytes of all pieces of `read`, one after the other: whole stripes of K strips
//! each (or any number of strips, if nothing is coded). Its *output* is the bytes of all pieces of
//! `write`: for each stripe the strips that the matrix makes. A piece holds whole strips. *Messages* are
//! the blocks of the strips of the input, then of the output, each strip cut anew, its last block shorter
//! where the strip is no multiple.
//!
//! **Invariants**: a [`Job`] has been checked; whoever runs it need not check lengths again.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ashlar_codec::{Code, Decoder, Stripe};

use crate::function::Function;

/// Bytes to read, shared with whoever submits: an `Arc<[u8]>`, a frozen buffer, a [`crate::Region`].
pub type Input = Box<dyn Deref<Target = [u8]> + Send + Sync>;

/// The longest message that a device takes: what the stack of its BLAKE3 kernel holds.
pub(crate) const MESSAGE_MAX: usize = 4096 * 1024;

/// The most bytes that a context has for itself where contexts have lengths of their own.
pub const CONTEXT_MAX: usize = 240;

/// A matrix over GF(2^8), and the codec that applies it on the processor.
pub struct Coding {
    how: How,
    k: usize,
    rows: usize,
    on_device: bool,
    /// For each input strip, and in it each row: products with 0..8, then with 0, 8, ..., 56.
    pub(crate) low: Vec<u8>,
    /// As `low`: products with 0, 64, 128, 192.
    pub(crate) high: Vec<u8>,
}

enum How {
    Encode(Code),
    Decode(Decoder),
}

impl Coding {
    /// All parity strips from all data strips.
    pub fn encode(code: &Code) -> Coding {
        let (k, rows) = (code.k(), code.m());
        let how = How::Encode(code.clone());
        let packets = code.kind().is_packets();
        Coding::new(how, k, rows, packets, |row, j| code.coefficient(row, j))
    }

    /// The strips that `decoder`, made by `code`, computes from those it reads.
    pub fn decode(code: &Code, decoder: &Decoder) -> Coding {
        let (k, rows) = (decoder.reads().len(), decoder.writes().len());
        let matrix = if code.kind().is_packets() {
            vec![vec![0; k]; rows]
        } else {
            matrix_of(decoder)
        };
        let how = How::Decode(decoder.clone());
        Coding::new(how, k, rows, code.kind().is_packets(), |row, j| {
            matrix[row][j]
        })
    }

    fn new(
        how: How,
        k: usize,
        rows: usize,
        packets: bool,
        coefficient: impl Fn(usize, usize) -> u8,
    ) -> Coding {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        for j in 0..k {
            for row in 0..rows {
                let c = coefficient(row, j);
                low.extend((0..8).map(|x| times(c, x)));
                low.extend((0..8).map(|x| times(c, x << 3)));
                high.extend((0..4).map(|x| times(c, x << 6)));
            }
        }
        // The packet codes exchange bits within 64 bytes, which no kernel does.
        let on_device = !packets && rows > 0;
        Coding {
            how,
            k,
            rows,
            on_device,
            low,
            high,
        }
    }

    /// Strips read for each stripe.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Strips written for each stripe.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether a device has a kernel for it.
    pub(crate) fn is_on_device(&self) -> bool {
        self.on_device
    }

    pub(crate) fn run(&self, stripes: &mut [Stripe<'_, '_>]) {
        match &self.how {
            How::Encode(code) => code.encode_batch(stripes),
            How::Decode(decoder) => decoder.decode_batch(stripes),
        }
    }
}

/// The rows of a decoder: what it makes of the unit vectors, one a byte position.
fn matrix_of(decoder: &Decoder) -> Vec<Vec<u8>> {
    let (k, rows) = (decoder.reads().len(), decoder.writes().len());
    let units: Vec<Vec<u8>> = (0..k)
        .map(|j| (0..k).map(|at| u8::from(at == j)).collect())
        .collect();
    let read: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
    let mut matrix = vec![vec![0; k]; rows];
    let mut write: Vec<&mut [u8]> = matrix.iter_mut().map(Vec::as_mut_slice).collect();
    decoder.decode(&read, &mut write);
    matrix
}

/// The product in GF(2^8) with 0x11d.
fn times(a: u8, b: u8) -> u8 {
    let (mut product, mut shifted) = (0, a);
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = (shifted << 1) ^ if shifted & 0x80 == 0 { 0 } else { 0x1d };
    }
    product
}

impl fmt::Debug for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Encode(_) => "encode",
            How::Decode(_) => "decode",
        };
        write!(f, "Coding({how} {} to {})", self.k, self.rows)
    }
}

/// Of which strips digests are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// Those of the input.
    Read,
    /// Those of the output.
    Written,
    /// Both, the input's first.
    Both,
}

/// What a message is besides its block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// The block's bytes alone.
    Plain,
    /// The block's bytes, then `each` bytes of `suffixes`, message after message.
    Suffixed {
        /// All suffixes, one after the other.
        suffixes: Vec<u8>,
        /// Bytes of one.
        each: usize,
    },
    /// [`ashlar_digest::keyed`] of the block with its context: of `each` bytes of `contexts`, message after
    /// message, all or the first that `lengths` says.
    Keyed {
        /// The key.
        key: [u8; 32],
        /// All contexts, one after the other.
        contexts: Vec<u8>,
        /// Bytes that each has there.
        each: usize,
        /// How many of them count, for each message; `None`: all. With lengths `each` is at most
        /// [`CONTEXT_MAX`].
        lengths: Option<Vec<u8>>,
    },
}

/// Digests to take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digests {
    /// The function.
    pub function: Function,
    /// Bytes of a block.
    pub block: usize,
    /// Of which strips.
    pub of: Of,
    /// What else goes into a message.
    pub form: Form,
    /// Also one root for each strip: the digests of a strip's blocks are taken together, `tree` at a
    /// time, again and again until one is left. A node is the digest of its children's digests followed
    /// by its level (1 above the blocks; 8 bytes, little-endian), keyed with the level as context if the
    /// blocks are keyed. A strip of one block has that block's digest as its root.
    pub tree: Option<usize>,
}

/// Why something is no job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobError {
    /// Strips of no bytes, or nothing to do.
    #[error("a job has strips, and codes them or takes their digests")]
    Empty,
    /// A piece that is not whole strips.
    #[error("a piece of {bytes} bytes is not whole strips")]
    Piece {
        /// Its length.
        bytes: usize,
    },
    /// The input is no whole number of stripes.
    #[error("{strips} strips to read are not whole stripes")]
    Stripes {
        /// Strips of the input.
        strips: usize,
    },
    /// The output is not what the matrix makes.
    #[error("{strips} strips to write where the matrix makes {needed}")]
    Output {
        /// Strips of the output.
        strips: usize,
        /// What the matrix makes.
        needed: usize,
    },
    /// Blocks of no bytes, or a tree that does not branch.
    #[error("digests need blocks of at least one byte, and a tree takes at least two together")]
    Block,
    /// Not one suffix or context for each message.
    #[error("{bytes} bytes of suffixes or contexts for {messages} messages")]
    Suffixes {
        /// Bytes given.
        bytes: usize,
        /// Messages there are.
        messages: usize,
    },
    /// The lengths of contexts are not one for each message, or longer than the contexts.
    #[error("the lengths of contexts do not go with the contexts")]
    Lengths,
    /// The function has no keyed form.
    #[error("this digest function has no keyed form")]
    NotKeyed,
}

/// The sizes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes of a strip.
    pub strip: usize,
    /// Strips of the input.
    pub read: usize,
    /// Strips of the output.
    pub written: usize,
    /// Stripes; 0 if nothing is coded.
    pub stripes: usize,
    /// Messages of the input.
    pub messages_read: usize,
    /// Messages of input and output.
    pub messages: usize,
    /// Messages of one strip.
    pub per_strip: usize,
    /// Bytes of all messages, without suffixes.
    pub hashed: usize,
}

/// The part of a job that is shared while it runs.
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) read: Vec<Input>,
    pub(crate) coding: Option<Arc<Coding>>,
    pub(crate) digests: Option<Digests>,
}

/// A piece of output whose type has been forgotten.
pub(crate) trait Piece: Send {
    fn bytes(&mut self) -> &mut [u8];
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<W: DerefMut<Target = [u8]> + Send + 'static> Piece for W {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A checked batch of work. `W` is what the output is written to, for example a `Vec<u8>`.
pub struct Job<W> {
    pub(crate) plan: Plan,
    pub(crate) write: Vec<W>,
    pub(crate) fresh: fn(usize) -> W,
}

impl<W: DerefMut<Target = [u8]> + Send + 'static> Job<W> {
    /// A job on strips of `strip` bytes.
    ///
    /// `fresh` makes memory of a given length: only for the output of a job that a device did not finish.
    ///
    /// # Errors
    /// [`JobError`], if lengths and numbers do not fit together.
    pub fn new(
        strip: usize,
        read: Vec<Input>,
        write: Vec<W>,
        fresh: fn(usize) -> W,
        coding: Option<Arc<Coding>>,
        digests: Option<Digests>,
    ) -> Result<Job<W>, JobError> {
        let lengths = |pieces: &mut dyn Iterator<Item = usize>| -> Result<usize, JobError> {
            let mut strips = 0;
            for bytes in pieces {
                if !bytes.is_multiple_of(strip) {
                    return Err(JobError::Piece { bytes });
                }
                strips += bytes / strip;
            }
            Ok(strips)
        };
        if strip == 0 || (coding.is_none() && digests.is_none()) {
            return Err(JobError::Empty);
        }
        let mut shape = Shape {
            strip,
            read: lengths(&mut read.iter().map(|piece| piece.len()))?,
            written: lengths(&mut write.iter().map(|piece| piece.len()))?,
            stripes: 0,
            messages_read: 0,
            messages: 0,
            per_strip: 0,
            hashed: 0,
        };
        if shape.read == 0 {
            return Err(JobError::Empty);
        }
        let needed = match &coding {
            Some(coding) if shape.read.is_multiple_of(coding.k) => {
                shape.stripes = shape.read / coding.k;
                shape.stripes * coding.rows
            }
            Some(_) => return Err(JobError::Stripes { strips: shape.read }),
            None => 0,
        };
        if shape.written != needed {
            return Err(JobError::Output {
                strips: shape.written,
                needed,
            });
        }
        if let Some(digests) = &digests {
            digests.measure(&mut shape)?;
        }
        let plan = Plan {
            shape,
            read,
            coding,
            digests,
        };
        Ok(Job { plan, write, fresh })
    }

    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.plan.shape
    }
}

impl Digests {
    fn measure(&self, shape: &mut Shape) -> Result<(), JobError> {
        if self.block == 0 || self.tree.is_some_and(|fan| fan < 2) {
            return Err(JobError::Block);
        }
        shape.per_strip = shape.strip.div_ceil(self.block);
        let read = if self.of == Of::Written {
            0
        } else {
            shape.read
        };
        let written = if self.of == Of::Read {
            0
        } else {
            shape.written
        };
        shape.messages_read = read * shape.per_strip;
        shape.messages = (read + written) * shape.per_strip;
        shape.hashed = (read + written) * shape.strip;
        let (bytes, each) = match &self.form {
            Form::Plain => (0, 0),
            Form::Suffixed { suffixes, each } => (suffixes.len(), *each),
            Form::Keyed { contexts, each, .. } => (contexts.len(), *each),
        };
        let messages = shape.messages;
        if bytes != messages * each {
            return Err(JobError::Suffixes { bytes, messages });
        }
        match &self.form {
            Form::Keyed { .. } if !self.function.is_keyed() => Err(JobError::NotKeyed),
            Form::Keyed {
                lengths: Some(lengths),
                each,
                ..
            } => {
                let good = lengths.len() == messages
                    && *each <= CONTEXT_MAX
                    && lengths.iter().all(|n| usize::from(*n) <= *each);
                good.then_some(()).ok_or(JobError::Lengths)
            }
            _ => Ok(()),
        }
    }

    /// Strips whose digests are taken.
    pub(crate) fn strips(&self, shape: &Shape) -> usize {
        shape.messages / shape.per_strip
    }
}

impl Plan {
    /// The strips of the input, in order.
    pub(crate) fn strips(&self) -> Vec<&[u8]> {
        let pieces = self.read.iter();
        pieces
            .flat_map(|piece| piece.chunks_exact(self.shape.strip))
            .collect()
    }
}

impl<W> fmt::Debug for Job<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("shape", &self.plan.shape)
            .field("coding", &self.plan.coding)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use ashlar_codec::CodeKind;

    fn input(bytes: usize) -> Vec<Input> {
        vec![Box::new(vec![0u8; bytes])]
    }

    fn fresh(bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let code = Code::new(CodeKind::IsalCauchy, 4, 2).unwrap();
        let coding = Some(Arc::new(Coding::encode(&code)));
        let digests = |block, form, tree| Digests {
            function: Function::Sha256,
            block,
            of: Of::Both,
            form,
            tree,
        };
        let job = |read, write: usize, digests| {
            Job::new(
                8,
                input(read),
                vec![fresh(write)],
                fresh,
                coding.clone(),
                digests,
            )
        };
        assert_eq!(job(64, 32, None).unwrap().shape().stripes, 2);
        assert_eq!(
            job(65, 32, None).unwrap_err(),
            JobError::Piece { bytes: 65 }
        );
        assert_eq!(
            job(56, 32, None).unwrap_err(),
            JobError::Stripes { strips: 7 }
        );
        let wrong = JobError::Output {
            strips: 3,
            needed: 4,
        };
        assert_eq!(job(64, 24, None).unwrap_err(), wrong);
        assert_eq!(job(0, 0, None).unwrap_err(), JobError::Empty);
        let shape = job(64, 32, Some(digests(3, Form::Plain, Some(2))))
            .unwrap()
            .shape();
        assert_eq!(
            (shape.messages_read, shape.messages, shape.hashed),
            (24, 36, 96)
        );
        for (block, tree) in [(0, None), (4, Some(1))] {
            let bad = job(64, 32, Some(digests(block, Form::Plain, tree)));
            assert_eq!(bad.unwrap_err(), JobError::Block);
        }
        let form = Form::Suffixed {
            suffixes: vec![0; 20],
            each: 2,
        };
        let bad = job(64, 32, Some(digests(8, form, None)));
        assert_eq!(
            bad.unwrap_err(),
            JobError::Suffixes {
                bytes: 20,
                messages: 12
            }
        );
        let form = Form::Keyed {
            key: [0; 32],
            contexts: vec![],
            each: 0,
            lengths: None,
        };
        assert_eq!(
            job(64, 32, Some(digests(8, form, None))).unwrap_err(),
            JobError::NotKeyed
        );
        for (each, length, count) in [(2, 3, 12), (2, 1, 11), (CONTEXT_MAX + 1, 0, 12)] {
            let mut bad = digests(8, Form::Plain, None);
            bad.function = Function::Blake3;
            bad.form = Form::Keyed {
                key: [0; 32],
                contexts: vec![0; 12 * each],
                each,
                lengths: Some(vec![length; count]),
            };
            assert_eq!(job(64, 32, Some(bad)).unwrap_err(), JobError::Lengths);
        }
        let nothing = Job::new(8, input(64), vec![], fresh, None, None);
        assert_eq!(nothing.unwrap_err(), JobError::Empty);
    }

    #[test]
    fn a_decoders_matrix_is_found() {
        // Lost data strip 1, with K = 1 mirrors of reed_sol_van: a copy, so the matrix is one.
        let code = Code::new(CodeKind::JerasureReedSolVan, 1, 2).unwrap();
        let decoder = code.decoder(&[false, true, true], &[0]).unwrap();
        assert_eq!(matrix_of(&decoder), vec![vec![1]]);
        // With isal_cauchy the missing strip is the parity over its coefficient, less the others.
        let code = Code::new(CodeKind::IsalCauchy, 2, 1).unwrap();
        let decoder = code.decoder(&[false, true, true], &[0]).unwrap();
        let matrix = matrix_of(&decoder);
        let (c0, c1) = (code.coefficient(0, 0), code.coefficient(0, 1));
        assert_eq!(times(matrix[0][1], c0), 1);
        assert_eq!(times(matrix[0][0], c0), c1);
    }
}
