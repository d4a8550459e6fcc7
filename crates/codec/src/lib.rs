//! Erasure codes over GF(2^8): bytes in, bytes out.
