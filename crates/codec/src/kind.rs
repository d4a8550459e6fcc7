//! Which codes there are, and why one could not be made or used.
//!
//! **Invariants**: tags are on disk and never reused; names are on the command line and never change.

/// The codes, by the library whose parity they reproduce.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum CodeKind {
    /// ISA-L `gf_gen_cauchy1_matrix`: coefficient `1 / ((k + i) + j)`. MDS always; the default.
    IsalCauchy,
    /// ISA-L `gf_gen_rs_matrix`: coefficient `2^(i j)`. Not MDS for every K and M.
    IsalRs,
    /// Jerasure `reed_sol_van`, w = 8: MDS always; the first parity is the XOR of the data, and with
    /// K = 1 every parity is a copy.
    JerasureReedSolVan,
    /// Jerasure `cauchy_orig`, w = 8, packets of 8 bytes: a bit-matrix code.
    CauchyOrig,
    /// Jerasure `cauchy_good`, w = 8, packets of 8 bytes: as `cauchy_orig` with fewer ones.
    CauchyGood,
    /// Reed-Solomon by additive FFT: quick to encode with many parities, never the default, and
    /// nobody else's bytes.
    Fft,
}

impl CodeKind {
    /// Every code, in the order of the tags.
    pub const ALL: [CodeKind; 6] = [
        CodeKind::IsalCauchy,
        CodeKind::IsalRs,
        CodeKind::JerasureReedSolVan,
        CodeKind::CauchyOrig,
        CodeKind::CauchyGood,
        CodeKind::Fft,
    ];

    /// The number that stands for this code on disk. 0 is never used.
    pub const fn tag(self) -> u8 {
        match self {
            CodeKind::IsalCauchy => 1,
            CodeKind::IsalRs => 2,
            CodeKind::JerasureReedSolVan => 3,
            CodeKind::CauchyOrig => 4,
            CodeKind::CauchyGood => 5,
            CodeKind::Fft => 6,
        }
    }

    /// The code with this number on disk; `None` if there is none.
    pub const fn from_tag(tag: u8) -> Option<CodeKind> {
        match tag {
            1 => Some(CodeKind::IsalCauchy),
            2 => Some(CodeKind::IsalRs),
            3 => Some(CodeKind::JerasureReedSolVan),
            4 => Some(CodeKind::CauchyOrig),
            5 => Some(CodeKind::CauchyGood),
            6 => Some(CodeKind::Fft),
            _ => None,
        }
    }

    /// The name used on the command line and in properties.
    pub const fn name(self) -> &'static str {
        match self {
            CodeKind::IsalCauchy => "isal_cauchy",
            CodeKind::IsalRs => "isal_rs",
            CodeKind::JerasureReedSolVan => "reed_sol_van",
            CodeKind::CauchyOrig => "cauchy_orig",
            CodeKind::CauchyGood => "cauchy_good",
            CodeKind::Fft => "fft",
        }
    }

    /// The code with this name.
    pub fn from_name(name: &str) -> Option<CodeKind> {
        CodeKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the code works on packets rather than bytes. Such a strip is cut into groups of 64
    /// bytes, and what is left at the end of a strip that is no multiple of 64 (which Jerasure does
    /// not take) is coded byte by byte with the same coefficients.
    pub const fn is_packets(self) -> bool {
        matches!(self, CodeKind::CauchyOrig | CodeKind::CauchyGood)
    }
}

/// Why a code could not be made or used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodeError {
    /// K or M out of range.
    #[error("{k}+{m} strips are no code: choose K >= 1 and K+M <= 256")]
    Shape {
        /// Data strips asked for.
        k: usize,
        /// Parity strips asked for.
        m: usize,
    },
    /// Some K strips of this code do not give the rest.
    #[error(
        "{} cannot survive every loss of {m} strips at {k}+{m}: choose isal_cauchy", kind.name()
    )]
    NotMds {
        /// The code refused.
        kind: CodeKind,
        /// Data strips asked for.
        k: usize,
        /// Parity strips asked for.
        m: usize,
    },
    /// This processor cannot run the kernel asked for, or there is none of that name.
    #[error("this processor has no such kernel: choose another or none")]
    NoKernel,
    /// Not K+M strips, or not one buffer for each wanted strip.
    #[error("wrong number of strips or buffers")]
    Strips,
    /// A strip number that this code does not have.
    #[error("there is no strip {strip}")]
    NoStrip {
        /// The number.
        strip: usize,
    },
    /// Strips or buffers of different lengths.
    #[error("strips and buffers have different lengths")]
    Lengths,
    /// More is missing than the code survives.
    #[error("only {present} of the {needed} strips needed are present")]
    TooFew {
        /// Strips present.
        present: usize,
        /// Strips needed: K.
        needed: usize,
    },
}
