//! How values are kept in columns. What does not decode is damage, and never a panic.

use std::{fmt::Display, str::FromStr};

use forkpoint_core::{Timestamp, driver::SnapshotKind, error::BoxError};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use serde::{Serialize, de::DeserializeOwned};

/// Anything that prints as text and parses from it: ids, names, triggers.
pub(super) struct Shown<T>(pub(super) T);

impl<T: Display> ToSql for Shown<T> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.to_string().into())
    }
}

impl<T> FromSql for Shown<T>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Self).map_err(other)
    }
}

pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> ToSql for Json<&T> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = serde_json::to_string(self.0);
        text.map(ToSqlOutput::from)
            .map_err(|err| rusqlite::Error::ToSqlConversionFailure(err.into()))
    }
}

impl<T: DeserializeOwned> FromSql for Json<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        serde_json::from_str(value.as_str()?).map(Self).map_err(other)
    }
}

/// A number of 64 bits, kept bit by bit: the upper half of its range is negative in the file.
pub(super) struct Unsigned(pub(super) u64);

impl ToSql for Unsigned {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.cast_signed().into())
    }
}

impl FromSql for Unsigned {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(|bits| Self(bits.cast_unsigned()))
    }
}

/// A time as text of one width, which sorts like the time from the year 0 on.
pub(super) struct Moment(pub(super) Timestamp);

impl Moment {
    pub(super) fn text(&self) -> String {
        format!("{:.9}", self.0)
    }
}

impl ToSql for Moment {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.text().into())
    }
}

impl FromSql for Moment {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Self).map_err(other)
    }
}

pub(super) struct Kind(pub(super) SnapshotKind);

impl FromSql for Kind {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let text = value.as_str()?;
        let kinds = [SnapshotKind::Files, SnapshotKind::Full];
        let kind = kinds.into_iter().find(|kind| kind.as_str() == text);
        kind.map(Self).ok_or_else(|| other(format!("no kind of snapshot is `{text}`")))
    }
}

/// A limit, a count or a place in a list, as far as SQLite can count.
pub(super) fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn other(err: impl Into<BoxError>) -> FromSqlError {
    FromSqlError::Other(err.into())
}
