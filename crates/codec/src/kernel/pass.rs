//! One call of a kernel: the values it takes, checked before any pointer is made of them.
//!
//! **Invariants**: after `check` every range lies inside its slice.

/// What the sources of a [`Pass`] are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// One for each column.
    Sources,
    /// Old and new content of the one column; results are added to.
    Change,
    /// One for each column, with one row whose coefficients are all 1.
    Ones,
}

/// One call of a kernel: `dst[r] (+)= sum over c of coefs[r * pitch + c] * src[c]`.
pub(crate) struct Pass<'a, 'b> {
    /// The coefficients in the kernel's own form, by source, then by row; see [`super::Kernel::table`].
    pub(crate) table: &'a [u64],
    /// The coefficients themselves, `pitch` from one row to the next.
    pub(crate) coefs: &'a [u8],
    pub(crate) pitch: usize,
    /// How many results there are.
    pub(crate) rows: usize,
    pub(crate) form: Form,
    pub(crate) src: &'a [&'a [u8]],
    pub(crate) src_at: usize,
    pub(crate) dst: &'a mut [&'b mut [u8]],
    pub(crate) dst_at: usize,
    /// Bytes of each source and result.
    pub(crate) len: usize,
    /// Add to what the results hold instead of replacing it.
    pub(crate) add: bool,
    /// Write around the caches; only if every result's first byte is aligned to 64.
    pub(crate) stream: bool,
    /// What will be read later in the place of each source, and where in it; to be fetched ahead
    /// of time. Empty for nothing.
    pub(crate) next: &'a [&'a [u8]],
    pub(crate) next_at: usize,
}

impl Pass<'_, '_> {
    /// Panics unless a kernel of so many rows, and table words for a coefficient, may run it: every range lies
    /// inside its slice.
    pub(super) fn check(&self, max_rows: usize, words: usize) {
        let holds = |length: usize, at: usize| length >= at && length - at >= self.len;
        assert!(self.rows >= 1 && self.rows <= max_rows && self.dst.len() == self.rows);
        let cols = match self.form {
            Form::Sources => self.src.len(),
            Form::Ones => {
                assert!(self.rows == 1);
                self.src.len()
            }
            Form::Change => {
                assert!(self.src.len() == 2 && self.add && !self.stream);
                1
            }
        };
        assert!(cols <= self.pitch);
        assert!(self.coefs.len() >= (self.rows - 1) * self.pitch + cols);
        assert!(self.table.len() == self.rows * cols * words);
        assert!(
            self.src
                .iter()
                .all(|source| holds(source.len(), self.src_at))
        );
        assert!(
            self.dst
                .iter()
                .all(|result| holds(result.len(), self.dst_at))
        );
        let aligned =
            |result: &&mut [u8]| (result.as_ptr() as usize + self.dst_at).is_multiple_of(64);
        assert!(!self.stream || self.dst.iter().all(aligned));
    }
}

/// What a [`Group`] does with its results' places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Nothing: more groups follow.
    Later,
    /// Asks for them to be brought near, since the next group writes them.
    Soon,
    /// Writes them.
    Now,
}

/// A few sources added into many rows: `sums[r] (+)= sum over s of coefs[r * sources + s] * src[s]`,
/// rows of `stride` bytes; the last such call of a series writes `dst[r]` instead.
pub(crate) struct Group<'a, 'b> {
    /// The coefficients in the kernel's own form, by row, then by source.
    pub(crate) table: &'a [u64],
    pub(crate) rows: usize,
    pub(crate) src: &'a [&'a [u8]],
    pub(crate) src_at: usize,
    /// The sums so far.
    pub(crate) sums: &'a mut [u8],
    pub(crate) stride: usize,
    /// The sums hold nothing yet.
    pub(crate) first: bool,
    /// Where the results go.
    pub(crate) dst: &'a mut [&'b mut [u8]],
    pub(crate) dst_at: usize,
    pub(crate) end: End,
    /// Bytes of each source: a multiple of [`GROUP_ALIGN`].
    pub(crate) len: usize,
    /// Write results around the caches; only if every result's first byte is aligned to 64.
    pub(crate) stream: bool,
    /// What will be read after this, and where in it; to be fetched ahead of time.
    pub(crate) next: &'a [&'a [u8]],
    pub(crate) next_at: usize,
    /// How far ahead of its reads it fetches, in bytes of each source: at most `len`.
    pub(crate) ahead: usize,
}

/// The length of a [`Group`] is a multiple of this, the widest vector.
pub(crate) const GROUP_ALIGN: usize = 64;

impl Group<'_, '_> {
    /// Panics unless a kernel of so many sources, and table words for a coefficient, may run it: every range lies
    /// inside its slice.
    pub(super) fn check(&self, sources: usize, words: usize) {
        let holds = |length: usize, at: usize| length >= at && length - at >= self.len;
        assert!(!self.src.is_empty() && self.src.len() <= sources && self.rows >= 1);
        assert!(self.len.is_multiple_of(GROUP_ALIGN) && self.stride >= self.len);
        assert!(self.table.len() == self.rows * self.src.len() * words);
        assert!(self.sums.len() >= self.rows * self.stride);
        assert!(
            self.src
                .iter()
                .all(|source| holds(source.len(), self.src_at))
        );
        let fits = |result: &&mut [u8]| holds(result.len(), self.dst_at);
        let aligned =
            |result: &&mut [u8]| (result.as_ptr() as usize + self.dst_at).is_multiple_of(64);
        assert!(self.dst.len() == self.rows && self.dst.iter().all(fits));
        assert!(!self.stream || self.dst.iter().all(aligned));
    }
}

/// Bytes that one round of [`super::Kernel::spin`] multiplies: a multiple of 12 vectors of every width.
pub(crate) const SPIN_BYTES: usize = 12 * 64 * 16;
