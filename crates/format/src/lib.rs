//! What the bytes on disk mean: superblock, root, slot table, journal record, summary, map node.
