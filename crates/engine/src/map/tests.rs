//! Heights, children and the cache of the node store.

use super::*;
use crate::testing::bed;

#[test]
fn children_are_those_with_some_of_the_leaves() {
    let under = |level, index, leaves: Range<u64>| -> Vec<u64> {
        children_above(level, index, &leaves).collect()
    };
    assert_eq!(under(1, 0, 3..5), vec![3, 4]);
    assert_eq!(under(2, 0, 63..65), vec![0, 1]);
    assert_eq!(under(2, 1, 0..4096), Vec::<u64>::new());
}

/// Clean nodes keep to the budget; nodes above the leaves are kept before leaves.
#[test]
fn the_cache_keeps_to_its_budget() {
    let bed = bed(1);
    let store = NodeStore::new(&bed.core, 32 * BLOCK as u64);
    store.add_tree(16, 0, 10_000, None);
    for leaf in 0..100 {
        store.insert_clean((16, 0, 0, leaf), Slice::zeroed(BLOCK));
    }
    for node in 0..4 {
        store.insert_clean((16, 0, 1, node), Slice::zeroed(BLOCK));
    }
    assert!(store.cached_bytes() <= 32 * BLOCK as u64);
    assert!((0..4).all(|node| store.is_cached((16, 0, 1, node))));
    assert!(store.is_cached((16, 0, 0, 99)) && !store.is_cached((16, 0, 0, 0)));
    store.remove_tree(16);
    assert_eq!(store.cached_bytes(), 0);
}
