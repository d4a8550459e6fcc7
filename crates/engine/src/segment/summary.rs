//! Rows of blocks, from the summaries of their columns; where one cannot be read, decoded from those of others.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::summary::{OWNER_BYTES, Row};

use crate::segment::course::read_course_rows;
use crate::segment::read::first_found;
use crate::segment::table::Core;
use crate::segment::{Pinned, Segment};

/// The rows of live blocks, from the summaries; where a column is missing, with decoded owners and
/// no digest.
pub async fn rows_of(core: &Rc<Core>, segment: &Pinned, live: &[u32]) -> BTreeMap<u32, Row> {
    let rt = &core.rt;
    let parts = live.iter().map(|block| {
        let (stripe, strip, _) = segment.geometry.locate(*block);
        (segment.geometry.course_of(stripe), usize::from(strip))
    });
    let parts: BTreeSet<(u32, usize)> = parts.collect();
    // The summaries of all columns at once.
    let read = |(course, column): (u32, usize)| {
        let (core, segment) = (core.clone(), segment.clone());
        let reading = async move {
            let rows = read_course_rows(&core, &segment, course, column).await;
            match rows {
                Some(rows) => Some(rows),
                None => decode_owners(&core, &segment, course, column).await,
            }
        };
        ((course, column), rt.spawn(reading))
    };
    let reading: Vec<_> = parts.into_iter().map(read).collect();
    let mut cache: BTreeMap<(u32, usize), Option<Vec<Row>>> = BTreeMap::new();
    for (part, rows) in reading {
        cache.insert(part, rows.await);
    }
    let mut found = BTreeMap::new();
    for block in live {
        let (stripe, strip, within) = segment.geometry.locate(*block);
        let course = segment.geometry.course_of(stripe);
        let column = usize::from(strip);
        let index = (stripe % segment.geometry.course_strips() * segment.geometry.strip_blocks
            + within) as usize;
        if let Some(Some(rows)) = cache.get(&(course, column))
            && let Some(row) = rows.get(index)
        {
            found.insert(*block, *row);
        }
    }
    found
}

/// The owner bytes of a column whose summary cannot be read, decoded from any K others.
pub async fn decode_owners(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    wanted: usize,
) -> Option<Vec<Row>> {
    let k = usize::from(segment.geometry.k);
    let read = |column| {
        let (reader, segment) = (core.clone(), segment.clone());
        let reading = async move { read_course_rows(&reader, &segment, course, column).await };
        core.rt.spawn(reading)
    };
    let others = (0..segment.geometry.width()).filter(|c| *c != wanted);
    let others = first_found(k, others, read).await?;
    let rows = others.iter().map(|(column, rows)| (*column, &rows[..]));
    let owners = decode_owner_bytes(core, segment, &[wanted], rows)?.pop()?;
    let row = |owner| Row {
        digest: [0; 16],
        owner,
    };
    Some(owners.into_iter().map(row).collect())
}

/// The owner bytes of columns of a course, decoded from the rows of K others.
pub fn decode_owner_bytes<'a>(
    core: &Core,
    segment: &Segment,
    wanted: &[usize],
    others: impl Iterator<Item = (usize, &'a [Row])>,
) -> Option<Vec<Vec<[u8; OWNER_BYTES]>>> {
    let mut inputs: Vec<Option<Vec<u8>>> = vec![None; segment.geometry.width()];
    for (column, rows) in others {
        inputs[column] = Some(rows.iter().flat_map(|row| row.owner).collect());
    }
    let bytes = inputs.iter().flatten().next()?.len();
    let mut out = vec![vec![0; bytes]; wanted.len()];
    let code = core.code(segment);
    // By stripes, as they are coded: packets of a code that has them begin with each strip.
    let strip = segment.geometry.strip_blocks as usize * OWNER_BYTES;
    for start in (0..bytes).step_by(strip) {
        let part = start..bytes.min(start + strip);
        let mut outputs: Vec<&mut [u8]> = out.iter_mut().map(|o| &mut o[part.clone()]).collect();
        let inputs = inputs.iter().map(Option::as_ref);
        let strips: Vec<Option<&[u8]>> = inputs.map(|i| i?.get(part.clone())).collect();
        code.decode(&strips, wanted, &mut outputs).ok()?;
    }
    let owners = |bytes: &Vec<u8>| bytes.as_chunks().0.to_vec();
    Some(out.iter().map(owners).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_codec::CodeKind;
    use ashlar_format::slot::SegmentKind;
    use ashlar_format::summary::Owner;

    use super::*;
    use crate::segment::Column;
    use crate::testing::bed;

    /// Owner bytes are coded as blocks are, stripe by stripe: those of any column come from any K others, by codes of
    /// bytes and of packets.
    #[test]
    fn owners_of_a_lost_column_are_decoded() {
        let bed = bed(4);
        let row = |address: u64| Row {
            digest: [1; 16],
            owner: Owner {
                tree: 16,
                address,
                ..Owner::default()
            }
            .to_bytes(),
        };
        let geometry = bed.segment(1, 2, 2).geometry;
        let strip = geometry.strip_blocks as usize;
        // Three stripes.
        let data = [0, 100].map(|first| (first..first + 3 * strip as u64).map(row).collect());
        let data: [Vec<Row>; 2] = data;
        for code in [CodeKind::IsalCauchy, CodeKind::CauchyGood].map(|kind| kind.tag()) {
            let columns = vec![Column::MISSING; geometry.width()];
            let segment = Segment::create(2, SegmentKind::Data, geometry, code, columns, 0);
            let mut second = Vec::new();
            for stripe in 0..3 {
                let part = stripe * strip..(stripe + 1) * strip;
                let flat = |rows: &Vec<Row>| -> Vec<u8> {
                    rows[part.clone()].iter().flat_map(|r| r.owner).collect()
                };
                let strips = [flat(&data[0]), flat(&data[1])];
                let mut parity = vec![vec![0; strips[0].len()]; 2];
                let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
                let inputs = [&strips[0][..], &strips[1][..]];
                bed.core.code(&segment).encode(&inputs, &mut outputs);
                let owners = parity[1].as_chunks().0.iter();
                second.extend(owners.map(|owner| Row {
                    digest: [0; 16],
                    owner: *owner,
                }));
            }
            let others = [(1, &data[1][..]), (3, &second[..])].into_iter();
            let found = decode_owner_bytes(&bed.core, &segment, &[0], others).unwrap();
            let lost: Vec<_> = data[0].iter().map(|row| row.owner).collect();
            assert_eq!(found[0], lost, "code {code}");
            let too_few = [(1, &data[1][..])].into_iter();
            assert!(decode_owner_bytes(&bed.core, &segment, &[0], too_few).is_none());
        }
    }
}
