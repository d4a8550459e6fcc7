//! Decides what to read for the blocks of a unit, given the attempts before.
//!
//! Invariants: a plan covers every block that is distrusted, once, in the order of the blocks; each plan trusts less
//! than the one before, and after the last nothing is left to try.

use ashlar_format::SegmentGeometry;

/// Blocks of one strip that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stripe.
    pub stripe: u32,
    /// The column that the strip is of.
    pub column: usize,
    /// The first block within the strip.
    pub within: u32,
    /// How many there are.
    pub count: u32,
}

impl Span {
    /// A single block.
    pub fn block(stripe: u32, column: usize, within: u32) -> Span {
        Span {
            stripe,
            column,
            within,
            count: 1,
        }
    }
}

/// How blocks are had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As their device gives them: whoever asks checks them.
    Read,
    /// The same, where all match their rows.
    Verified,
    /// Computed from other columns as these are read: whoever asks checks them.
    Decoded,
    /// Computed from blocks of other columns that match their rows.
    DecodedVerified,
}

/// Data blocks that are checked as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The first.
    pub block: u32,
    /// How many there are.
    pub count: u32,
}

impl Unit {
    /// A block that is checked by itself.
    pub fn one(block: u32) -> Unit {
        Unit { block, count: 1 }
    }
}

/// How far what is read of a unit is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// What devices give is trusted until the unit is checked.
    Devices,
    /// The same, but for these blocks.
    But(Vec<u32>),
    /// Only blocks that match their rows.
    Rows,
    /// Only blocks of other columns that match their rows: a block may have been lost together with its row.
    OtherRows,
}

impl Trust {
    /// What is trusted next: after blocks did not come, or, where all came, the unit did not match.
    pub fn less(self, unit: Unit, missing: Vec<u32>) -> Option<Trust> {
        match self {
            Trust::Devices if !missing.is_empty() => Some(Trust::But(missing)),
            // Which of several blocks does not match only their rows tell.
            Trust::Devices if unit.count > 1 => Some(Trust::Rows),
            Trust::Devices => Some(Trust::But(vec![unit.block])),
            Trust::But(_) => Some(Trust::Rows),
            Trust::Rows if missing.is_empty() => Some(Trust::OtherRows),
            Trust::Rows | Trust::OtherRows => None,
        }
    }
}

/// Blocks that are had together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The first of them.
    pub block: u32,
    /// Where they are.
    pub span: Span,
    /// How they are had.
    pub how: How,
    /// How they are had if they do not come so.
    pub otherwise: Option<How>,
}

/// The steps that give the blocks of a unit that are not there yet, or not trusted any more.
pub fn plan_read(geometry: SegmentGeometry, unit: Unit, trust: &Trust) -> Vec<Step> {
    let end = unit.block + unit.count;
    let step = |block: u32, most: u32, how, otherwise| {
        let (stripe, strip, within) = geometry.locate(block);
        let span = Span {
            stripe,
            column: usize::from(strip),
            within,
            count: most.min(geometry.strip_blocks - within),
        };
        Step {
            block,
            span,
            how,
            otherwise,
        }
    };
    match trust {
        Trust::Devices => {
            let mut steps = Vec::new();
            let mut at = unit.block;
            while at < end {
                steps.push(step(at, end - at, How::Read, None));
                at += steps.last().map_or(1, |s: &Step| s.span.count);
            }
            steps
        }
        Trust::But(blocks) => {
            let blocks = blocks.iter();
            blocks.map(|b| step(*b, 1, How::Decoded, None)).collect()
        }
        Trust::Rows => {
            let decoded = Some(How::DecodedVerified);
            let blocks = unit.block..end;
            blocks.map(|b| step(b, 1, How::Verified, decoded)).collect()
        }
        Trust::OtherRows => {
            let blocks = unit.block..end;
            blocks
                .map(|b| step(b, 1, How::DecodedVerified, None))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Unit = Unit { block: 5, count: 1 };
    /// Two blocks of column 1, then two of column 2.
    const FOUR: Unit = Unit { block: 6, count: 4 };

    /// Blocks, column, block within the strip, count, how.
    fn steps(unit: Unit, trust: &Trust) -> Vec<(u32, usize, u32, u32, How)> {
        let geometry = SegmentGeometry {
            k: 3,
            m: 2,
            strip_blocks: 4,
            slot_blocks: 64,
        };
        let steps = plan_read(geometry, unit, trust).into_iter();
        steps
            .map(|s| (s.block, s.span.column, s.span.within, s.span.count, s.how))
            .collect()
    }

    #[test]
    fn each_plan_trusts_less() {
        use How::{Decoded, DecodedVerified, Read, Verified};
        let t = |unit, trust, expected: &[_]| assert_eq!(steps(unit, &trust), expected);
        t(ONE, Trust::Devices, &[(5, 1, 1, 1, Read)]);
        t(ONE, Trust::But(vec![5]), &[(5, 1, 1, 1, Decoded)]);
        t(ONE, Trust::Rows, &[(5, 1, 1, 1, Verified)]);
        t(ONE, Trust::OtherRows, &[(5, 1, 1, 1, DecodedVerified)]);
        t(
            FOUR,
            Trust::Devices,
            &[(6, 1, 2, 2, Read), (8, 2, 0, 2, Read)],
        );
        let but = Trust::But(vec![8, 9]);
        t(FOUR, but, &[(8, 2, 0, 1, Decoded), (9, 2, 1, 1, Decoded)]);
        let all = [(6, 1, 2, 1), (7, 1, 3, 1), (8, 2, 0, 1), (9, 2, 1, 1)];
        for (trust, how) in [(Trust::Rows, Verified), (Trust::OtherRows, DecodedVerified)] {
            let each =
                all.map(|(block, column, within, count)| (block, column, within, count, how));
            t(FOUR, trust, &each);
        }
    }

    #[test]
    fn trust_ends() {
        let t = |trust: Trust, unit, missing: &[u32], next| {
            let told = format!("{trust:?} of {unit:?} without {missing:?}");
            assert_eq!(trust.less(unit, missing.to_vec()), next, "{told}");
        };
        t(Trust::Devices, ONE, &[], Some(Trust::But(vec![5])));
        t(Trust::Devices, ONE, &[5], Some(Trust::But(vec![5])));
        t(Trust::Devices, FOUR, &[], Some(Trust::Rows));
        t(Trust::Devices, FOUR, &[6, 7], Some(Trust::But(vec![6, 7])));
        t(Trust::But(vec![5]), ONE, &[], Some(Trust::Rows));
        t(Trust::But(vec![6, 7]), FOUR, &[7], Some(Trust::Rows));
        t(Trust::Rows, FOUR, &[], Some(Trust::OtherRows));
        t(Trust::Rows, FOUR, &[6], None);
        t(Trust::OtherRows, FOUR, &[], None);
        t(Trust::OtherRows, ONE, &[5], None);
    }
}
