//! Requests in memory: columns of NumPy or Arrow as the records of a trace.
//!
//! A column is known by its name, as in the header of a CSV (`docs/traces.md`). Times are seconds, or what the name's end
//! says, or what an Arrow timestamp or duration says; operations and flags are letters or words; units are numbers, or
//! names, which are numbered as they come.
//!
//! Cost: one pass a column, 32 bytes a request.

use crate::Error;
use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::types::{
    ArrowDictionaryKeyType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_schema::{DataType, TimeUnit};
use bimetal_base::time::Time;
use bimetal_trace::formats::csv::word;
use bimetal_trace::{Flags, Op, Record, Source};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::collections::HashMap;
use std::sync::Arc;

/// What messages and reports call such a trace.
const NAME: &str = "<columns>";

/// Requests in memory, to be played any number of times.
#[pyclass(frozen, module = "bimetal._bimetal")]
pub struct Requests {
    records: Arc<[Record]>,
}

impl Requests {
    /// As a trace.
    pub fn source(&self) -> Source {
        Source::given(NAME, self.records.clone())
    }
}

#[pymethods]
impl Requests {
    /// From columns of NumPy: of each its name, its kind, its values as little-endian bytes, and its words. The kinds are
    /// `whole` (64 bits, unsigned), `nanos` (the same, of time), `float` (64 bits) and `words` (32 bits each, which of the
    /// words).
    #[staticmethod]
    fn of_columns(columns: Vec<(String, String, Vec<u8>, Vec<String>)>) -> PyResult<Requests> {
        let read = columns.into_iter().map(|(name, kind, bytes, words)| {
            let whole = || bytes.chunks_exact(8).filter_map(|b| b.try_into().ok()).map(u64::from_le_bytes);
            let values = match kind.as_str() {
                "whole" => Values::Whole(whole().collect()),
                "nanos" => Values::Nanos(whole().collect()),
                "float" => Values::Float(whole().map(f64::from_bits).collect()),
                _ => {
                    let codes = bytes.chunks_exact(4).filter_map(|b| b.try_into().ok());
                    Values::Words(words, codes.map(u32::from_le_bytes).collect())
                }
            };
            (name, values)
        });
        let mut builder = Builder::default();
        builder.add(&read.collect::<Vec<_>>())?;
        Ok(builder.done())
    }

    /// From a stream of Arrow's C interface.
    #[staticmethod]
    fn of_stream(capsule: &Bound<'_, PyCapsule>) -> PyResult<Requests> {
        let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
        // SAFETY: a capsule of that name holds a stream by Arrow's PyCapsule interface. Moving it out leaves a released
        // one behind, as the interface wants of a consumer, and the interpreter's lock is held.
        let reader = unsafe { RecordBatchStreamReader::from_raw(stream.as_ptr()) };
        let failed = |why: arrow_schema::ArrowError| Error::new_err(format!("trace: Arrow: {why}"));
        let mut builder = Builder::default();
        for batch in reader.map_err(failed)? {
            let batch = batch.map_err(failed)?;
            let schema = batch.schema();
            let named = schema.fields().iter().zip(batch.columns());
            let known = named.filter(|(field, _)| Role::of(field.name()).is_some());
            let columns = known.map(|(field, column)| {
                Ok((field.name().clone(), arrow_values(field.name(), column.as_ref())?))
            });
            builder.add(&columns.collect::<PyResult<Vec<_>>>()?)?;
        }
        Ok(builder.done())
    }

    /// How many there are.
    fn __len__(&self) -> usize {
        self.records.len()
    }
}

/// What a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Of so many nanoseconds each.
    Time(u64),
    Op,
    /// Of so many bytes each.
    Offset(u64),
    Length(u64),
    Unit,
    Flags,
}

impl Role {
    /// By its name, as the header of a CSV has it.
    fn of(name: &str) -> Option<Role> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "time_s" | "time" | "timestamp" | "seconds" => Role::Time(1_000_000_000),
            "time_ms" | "timestamp_ms" => Role::Time(1_000_000),
            "time_us" | "timestamp_us" => Role::Time(1000),
            "time_ns" | "timestamp_ns" => Role::Time(1),
            "op" | "operation" | "opcode" | "type" | "rw" => Role::Op,
            "offset" | "offset_bytes" => Role::Offset(1),
            "lba" | "sector" | "sector512" | "block512" => Role::Offset(512),
            "length" | "length_bytes" | "len" | "bytes" | "size" | "size_bytes" => Role::Length(1),
            "sectors" => Role::Length(512),
            "flags" => Role::Flags,
            "unit" | "device" | "device_id" | "dev" | "disk" | "disk_id" | "volume" | "volume_id" | "lun"
            | "asu" | "path_id" | "file" => Role::Unit,
            _ => return None,
        })
    }

    /// The same column, in whatever unit.
    fn is_same(self, other: Role) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// The values of a column.
enum Values {
    Whole(Vec<u64>),
    /// Time, nanoseconds.
    Nanos(Vec<u64>),
    Float(Vec<f64>),
    /// Words, and which of them each row has.
    Words(Vec<String>, Vec<u32>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Whole(values) | Values::Nanos(values) => values.len(),
            Values::Float(values) => values.len(),
            Values::Words(_, codes) => codes.len(),
        }
    }
}

/// Says what is wrong with a column.
fn wrong(name: &str, why: impl std::fmt::Display) -> PyErr {
    Error::new_err(format!("trace: column '{name}': {why}"))
}

/// A number of some unit that counts as `factor`.
fn scaled(name: &str, values: &Values, factor: u64) -> PyResult<Vec<u64>> {
    let too_large = |row: usize| wrong(name, format!("the value of row {row} is too large"));
    match values {
        Values::Nanos(_) if factor == 512 => Err(wrong(name, "is of time, not a number of sectors")),
        Values::Nanos(values) => Ok(values.clone()),
        Values::Whole(values) => {
            let scaled =
                |(row, value): (usize, &u64)| value.checked_mul(factor).ok_or_else(|| too_large(row));
            values.iter().enumerate().map(scaled).collect()
        }
        Values::Float(values) => {
            let scaled = |(row, value): (usize, &f64)| {
                let scaled = (value * factor as f64).round();
                match (0.0..u64::MAX as f64).contains(&scaled) {
                    true => Ok(scaled as u64),
                    false => {
                        Err(wrong(name, format!("{value} in row {row} is no number from 0 on that fits")))
                    }
                }
            };
            values.iter().enumerate().map(scaled).collect()
        }
        Values::Words(..) => Err(wrong(name, "has words where numbers are expected")),
    }
}

/// Gathers records of batches.
#[derive(Default)]
struct Builder {
    records: Vec<Record>,
    /// Units that have names, numbered as they came.
    units: HashMap<String, u32>,
}

impl Builder {
    /// Adds a batch of rows.
    fn add(&mut self, columns: &[(String, Values)]) -> PyResult<()> {
        let mut known: Vec<(Role, &String, &Values)> = Vec::new();
        for (name, values) in columns {
            let Some(role) = Role::of(name) else { continue };
            if let Some((_, twice, _)) = known.iter().find(|(other, ..)| other.is_same(role)) {
                return Err(wrong(name, format!("'{twice}' says the same; leave one out")));
            }
            known.push((role, name, values));
        }
        let rows = known.first().map_or(0, |(.., values)| values.len());
        if let Some((_, name, values)) = known.iter().find(|(.., values)| values.len() != rows) {
            return Err(wrong(name, format!("has {} rows, and '{}' {rows}", values.len(), known[0].1)));
        }
        let has = |wanted: Role| known.iter().any(|(role, ..)| role.is_same(wanted));
        for (role, name) in [(Role::Op, "op"), (Role::Offset(1), "offset"), (Role::Length(1), "length")] {
            if !has(role) {
                let why = "a trace has the columns op, offset and length, and may have time, unit and flags";
                return Err(Error::new_err(format!("trace: there is no column '{name}': {why}")));
            }
        }
        let from = self.records.len();
        self.records.resize(from + rows, Record::new(Time::ZERO, Op::Read, 0, 0));
        known.into_iter().try_for_each(|(role, name, values)| self.set(from, role, name, values))
    }

    /// Sets what a column says of the rows from `from` on.
    fn set(&mut self, from: usize, role: Role, name: &str, values: &Values) -> PyResult<()> {
        let records = self.records[from..].iter_mut();
        match role {
            Role::Time(unit) => {
                let times = scaled(name, values, unit)?;
                records.zip(times).for_each(|(record, at)| record.at = Time(at));
            }
            Role::Offset(unit) => {
                records.zip(scaled(name, values, unit)?).for_each(|(record, offset)| record.offset = offset);
            }
            Role::Length(unit) => {
                records.zip(scaled(name, values, unit)?).for_each(|(record, len)| record.len = len);
            }
            Role::Op => {
                let op =
                    |text: &str| word(text.as_bytes()).ok_or_else(|| format!("'{text}' is not an operation"));
                let ops = of_words(name, values, "operations are letters or words: R, W, F, D, …", op)?;
                records.zip(ops).for_each(|(record, op)| record.op = op);
            }
            Role::Flags => {
                let all = of_words(name, values, "flags are letters of PUSMA, or -", flags)?;
                records.zip(all).for_each(|(record, flags)| record.flags = flags);
            }
            Role::Unit => {
                let units = self.units_of(name, values)?;
                self.records[from..].iter_mut().zip(units).for_each(|(record, unit)| record.unit = unit);
            }
        }
        Ok(())
    }

    fn units_of(&mut self, name: &str, values: &Values) -> PyResult<Vec<u32>> {
        let Values::Words(words, codes) = values else {
            let number = |unit| {
                u32::try_from(unit).map_err(|_| wrong(name, format!("{unit} is no number of 32 bits")))
            };
            return scaled(name, values, 1)?.into_iter().map(number).collect();
        };
        let unit = |code: &u32| {
            let next = self.units.len() as u32;
            let word = words.get(*code as usize).cloned().unwrap_or_default();
            *self.units.entry(word).or_insert(next)
        };
        Ok(codes.iter().map(unit).collect())
    }

    fn done(self) -> Requests {
        Requests { records: self.records.into() }
    }
}

/// What the words of a column stand for, row by row.
fn of_words<T: Copy>(
    name: &str,
    values: &Values,
    wanted: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> PyResult<Vec<T>> {
    let Values::Words(words, codes) = values else {
        // An empty list of Python is one of numbers to NumPy.
        return if values.len() == 0 { Ok(Vec::new()) } else { Err(wrong(name, wanted)) };
    };
    let read: Vec<Result<T, String>> = words.iter().map(|word| read(word)).collect();
    let of = |(row, code): (usize, &u32)| match read.get(*code as usize) {
        Some(Ok(value)) => Ok(*value),
        Some(Err(why)) => Err(wrong(name, format!("{why} (row {row}); {wanted}"))),
        None => Err(wrong(name, format!("row {row} has no word; {wanted}"))),
    };
    codes.iter().enumerate().map(of).collect()
}

fn flags(text: &str) -> Result<Flags, String> {
    text.bytes().filter(|letter| *letter != b'-').try_fold(Flags::NONE, |flags, letter| {
        let known = Flags::LETTERS.iter().find(|(known, _)| *known == letter);
        known.map(|(_, flag)| flags | *flag).ok_or_else(|| format!("'{text}' are no flags"))
    })
}

/// The values of a column of Arrow.
fn arrow_values(name: &str, column: &dyn Array) -> PyResult<Values> {
    if column.null_count() > 0 {
        return Err(wrong(name, "has empty cells"));
    }
    let nanos = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    };
    let time = |whole: Vec<u64>, unit| scaled(name, &Values::Whole(whole), nanos(unit)).map(Values::Nanos);
    match column.data_type() {
        DataType::Int8 => whole::<Int8Type>(name, column).map(Values::Whole),
        DataType::Int16 => whole::<Int16Type>(name, column).map(Values::Whole),
        DataType::Int32 => whole::<Int32Type>(name, column).map(Values::Whole),
        DataType::Int64 => whole::<Int64Type>(name, column).map(Values::Whole),
        DataType::UInt8 => whole::<UInt8Type>(name, column).map(Values::Whole),
        DataType::UInt16 => whole::<UInt16Type>(name, column).map(Values::Whole),
        DataType::UInt32 => whole::<UInt32Type>(name, column).map(Values::Whole),
        DataType::UInt64 => whole::<UInt64Type>(name, column).map(Values::Whole),
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>().values();
            Ok(Values::Float(values.iter().map(|value| f64::from(*value)).collect()))
        }
        DataType::Float64 => Ok(Values::Float(column.as_primitive::<Float64Type>().values().to_vec())),
        DataType::Timestamp(unit, _) => time(timestamps(name, column, unit)?, unit),
        DataType::Duration(unit) => time(durations(name, column, unit)?, unit),
        DataType::Utf8 => Ok(texts(column.as_string::<i32>().iter())),
        DataType::LargeUtf8 => Ok(texts(column.as_string::<i64>().iter())),
        DataType::Utf8View => Ok(texts(column.as_string_view().iter())),
        DataType::Dictionary(key, _) => match **key {
            DataType::Int8 => dictionary::<Int8Type>(name, column),
            DataType::Int16 => dictionary::<Int16Type>(name, column),
            DataType::Int32 => dictionary::<Int32Type>(name, column),
            DataType::Int64 => dictionary::<Int64Type>(name, column),
            DataType::UInt8 => dictionary::<UInt8Type>(name, column),
            DataType::UInt16 => dictionary::<UInt16Type>(name, column),
            DataType::UInt32 => dictionary::<UInt32Type>(name, column),
            _ => dictionary::<UInt64Type>(name, column),
        },
        other => Err(wrong(name, format!("is of type {other}, which no column of a trace is"))),
    }
}

/// Whole numbers from 0 on.
fn whole<T: ArrowPrimitiveType>(name: &str, column: &dyn Array) -> PyResult<Vec<u64>>
where
    T::Native: TryInto<u64> + std::fmt::Debug,
{
    let values = column.as_primitive::<T>().values().iter().enumerate();
    let number = |(row, value): (usize, &T::Native)| {
        (*value).try_into().map_err(|_| wrong(name, format!("{value:?} in row {row} is no number from 0 on")))
    };
    values.map(number).collect()
}

fn timestamps(name: &str, column: &dyn Array, unit: &TimeUnit) -> PyResult<Vec<u64>> {
    match unit {
        TimeUnit::Second => whole::<TimestampSecondType>(name, column),
        TimeUnit::Millisecond => whole::<TimestampMillisecondType>(name, column),
        TimeUnit::Microsecond => whole::<TimestampMicrosecondType>(name, column),
        TimeUnit::Nanosecond => whole::<TimestampNanosecondType>(name, column),
    }
}

fn durations(name: &str, column: &dyn Array, unit: &TimeUnit) -> PyResult<Vec<u64>> {
    match unit {
        TimeUnit::Second => whole::<DurationSecondType>(name, column),
        TimeUnit::Millisecond => whole::<DurationMillisecondType>(name, column),
        TimeUnit::Microsecond => whole::<DurationMicrosecondType>(name, column),
        TimeUnit::Nanosecond => whole::<DurationNanosecondType>(name, column),
    }
}

/// Texts as words, each once.
fn texts<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> Values {
    let (mut words, mut known, mut codes) = (Vec::new(), HashMap::new(), Vec::new());
    for text in texts {
        let text = text.unwrap_or_default();
        codes.push(*known.entry(text).or_insert_with(|| {
            words.push(text.to_string());
            words.len() as u32 - 1
        }));
    }
    Values::Words(words, codes)
}

/// A column whose values are kept once.
fn dictionary<K: ArrowDictionaryKeyType>(name: &str, column: &dyn Array) -> PyResult<Values> {
    let column = column.as_dictionary::<K>();
    let Values::Words(words, distinct) = arrow_values(name, column.values().as_ref())? else {
        return Err(wrong(name, "is a dictionary of what are no texts"));
    };
    let code = |key: Option<usize>| distinct.get(key.unwrap_or_default()).copied().unwrap_or(u32::MAX);
    Ok(Values::Words(words, column.keys_iter().map(code).collect()))
}
