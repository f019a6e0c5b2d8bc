//! What every catalog must do.
