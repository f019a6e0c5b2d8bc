//! What a person sees, and whether the documents tell the truth.

mod documents;
mod help;
