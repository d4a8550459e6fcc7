//! Layout notations and placement, pure.
