//! Checksums and digests of blocks.
