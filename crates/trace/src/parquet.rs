//! A Parquet file as the CSV it stands for: a header of its columns' names, then a line a row.
//!
//! So a table of requests is read by whichever format knows its columns, as a CSV would be. Its columns must be plain (no
//! lists, no groups). Numbers, also those of times and dates, are written as they are stored; yes and no are 1 and 0; what is
//! missing is empty. A text with a comma or an end of line in it would make two columns or lines, and ends the reading.
//!
//! A Parquet file says at its end what is in it: a file is read from where it needs to be; what comes through a pipe, or out of
//! another packing, is kept in memory first.

use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a Parquet file begins and ends with.
pub(super) const MAGIC: [u8; 4] = *b"PAR1";

/// The lines of a Parquet file.
pub(super) struct ParquetText {
    rows: RowIter<'static>,
    /// The line under way.
    line: Vec<u8>,
    /// How much of it is read.
    given: usize,
    /// Rows so far.
    count: u64,
}

impl ParquetText {
    /// Reads `file`.
    ///
    /// # Errors
    /// It is no Parquet file, or has columns that are not plain.
    pub fn open(file: impl ChunkReader + 'static) -> io::Result<ParquetText> {
        let bytes = file.len();
        let reader = held(|| SerializedFileReader::new(file))?;
        check_places(reader.metadata(), bytes)?;
        let schema = reader.metadata().file_metadata().schema();
        if let Some(field) = schema.get_fields().iter().find(|field| !field.is_primitive()) {
            return Err(refused(format!("column '{}' is not plain: {field:?}", field.name().escape_debug())));
        }
        let names = schema.get_fields().iter().map(|field| field.name());
        let mut line = names.map(str::as_bytes).collect::<Vec<_>>().join(&b',');
        line.push(b'\n');
        let rows = RowIter::from_file_into(Box::new(reader));
        Ok(ParquetText { rows, line, given: 0, count: 0 })
    }

    fn next_line(&mut self) -> io::Result<()> {
        self.line.clear();
        self.given = 0;
        let Some(row) = held(|| self.rows.next().transpose())? else { return Ok(()) };
        self.count += 1;
        write_row(&mut self.line, &row)
            .map_err(|why| io::Error::new(why.kind(), format!("row {}: {why}", self.count)))
    }
}

impl Read for ParquetText {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given == self.line.len() {
            self.next_line()?;
        }
        let got = (&self.line[self.given..]).read(into)?;
        self.given += got;
        Ok(got)
    }
}

/// Refuses columns that lie outside of a file of so many bytes, which the library does not.
fn check_places(about: &ParquetMetaData, bytes: u64) -> io::Result<()> {
    let columns = about.row_groups().iter().flat_map(|group| group.columns());
    for column in columns {
        let start = column
            .dictionary_page_offset()
            .unwrap_or(column.data_page_offset())
            .min(column.data_page_offset());
        let length = column.compressed_size();
        let end = u64::try_from(start)
            .ok()
            .zip(u64::try_from(length).ok())
            .and_then(|(at, len)| at.checked_add(len));
        if end.is_none_or(|end| end > bytes) || column.num_values() < 0 {
            let name = column.column_path().string();
            return Err(refused(format!(
                "column '{}' lies at {start} with {length} bytes, in a file of {bytes}",
                name.escape_debug()
            )));
        }
    }
    Ok(())
}

/// What the library gives; where it meets a bug of its own, on a damaged file, an error.
fn held<T>(of: impl FnOnce() -> Result<T, ParquetError>) -> io::Result<T> {
    match catch_unwind(AssertUnwindSafe(of)) {
        Ok(given) => given.map_err(|why| refused(why.to_string())),
        Err(_) => Err(refused("it is damaged in a way that nobody thought of".to_string())),
    }
}

fn write_row(line: &mut Vec<u8>, row: &Row) -> io::Result<()> {
    for (at, (name, field)) in row.get_column_iter().enumerate() {
        if at > 0 {
            line.push(b',');
        }
        match field {
            Field::Null => Ok(()),
            Field::Bool(value) => write!(line, "{}", u8::from(*value)),
            Field::Byte(value) => write!(line, "{value}"),
            Field::Short(value) => write!(line, "{value}"),
            Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => write!(line, "{value}"),
            Field::Long(value)
            | Field::TimeMicros(value)
            | Field::TimestampMillis(value)
            | Field::TimestampMicros(value) => write!(line, "{value}"),
            Field::UByte(value) => write!(line, "{value}"),
            Field::UShort(value) => write!(line, "{value}"),
            Field::UInt(value) => write!(line, "{value}"),
            Field::ULong(value) => write!(line, "{value}"),
            Field::Float16(value) => write!(line, "{value}"),
            Field::Float(value) => write!(line, "{value}"),
            Field::Double(value) => write!(line, "{value}"),
            Field::Str(text) => write_text(line, text.as_bytes()),
            Field::Bytes(bytes) => write_text(line, bytes.data()),
            _ => Err(refused(format!("column '{}' is not plain", name.escape_debug()))),
        }?;
    }
    line.push(b'\n');
    Ok(())
}

fn write_text(line: &mut Vec<u8>, text: &[u8]) -> io::Result<()> {
    if text.iter().any(|byte| matches!(byte, b',' | b'\n' | b'\r')) {
        return Err(refused(format!("'{}' has a comma or an end of line in it", text.escape_ascii())));
    }
    line.extend_from_slice(text);
    Ok(())
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, ReadOptions, Record, Source};
    use bimetal_base::random::Random;
    use bimetal_base::time::Time;
    use bytes::Bytes;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    const SCHEMA: &str = "message trace {
        required double time_s; required binary op (UTF8); required int64 offset_bytes; optional int64 length_bytes;
    }";

    /// Two row groups with `rows` requests each.
    fn table(rows: i64, compression: Compression) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, properties).unwrap();
        for group in 0..2 {
            let numbers = || (0..rows).map(|row| group * rows + row);
            let mut columns = writer.next_row_group().unwrap();
            let mut column = columns.next_column().unwrap().unwrap();
            let times: Vec<f64> = numbers().map(|number| number as f64 / 8.0).collect();
            column.typed::<DoubleType>().write_batch(&times, None, None).unwrap();
            column.close().unwrap();
            let mut column = columns.next_column().unwrap().unwrap();
            let ops: Vec<ByteArray> = numbers().map(|n| if n % 2 == 0 { "R" } else { "W" }.into()).collect();
            column.typed::<ByteArrayType>().write_batch(&ops, None, None).unwrap();
            column.close().unwrap();
            let mut column = columns.next_column().unwrap().unwrap();
            let offsets: Vec<i64> = numbers().map(|number| number * 4096).collect();
            column.typed::<Int64Type>().write_batch(&offsets, None, None).unwrap();
            column.close().unwrap();
            let mut column = columns.next_column().unwrap().unwrap();
            let lengths = vec![512; rows as usize];
            let there = vec![1; rows as usize];
            column.typed::<Int64Type>().write_batch(&lengths, Some(&there), None).unwrap();
            column.close().unwrap();
            columns.close().unwrap();
        }
        writer.close().unwrap();
        file
    }

    fn read(name: &str, bytes: &[u8]) -> bimetal_base::Result<Vec<Record>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Source::parse(path.to_str().unwrap(), ReadOptions::default())?.open()?.collect()
    }

    #[test]
    fn a_table_of_requests_is_a_trace_however_it_is_compressed() {
        let level = ZstdLevel::try_new(3).unwrap();
        for compression in
            [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(level), Compression::LZ4_RAW]
        {
            let records = read("trace.parquet", &table(3000, compression)).unwrap();
            assert_eq!(records.len(), 6000);
            assert_eq!(records[4321], Record::new(Time(540_125_000_000), Op::Write, 4321 * 4096, 512));
        }
    }

    #[test]
    fn it_is_one_out_of_another_packing_too() {
        let packed = zstd::encode_all(&table(100, Compression::SNAPPY)[..], 3).unwrap();
        assert_eq!(read("trace.parquet.zst", &packed).unwrap().len(), 200);
    }

    #[test]
    fn what_is_not_plain_or_would_be_two_columns_is_refused() {
        let nested = "message m { required group a { required int64 b; } }";
        let mut file = Vec::new();
        let schema = Arc::new(parse_message_type(nested).unwrap());
        SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap().close().unwrap();
        let error = read("trace.parquet", &file).unwrap_err().to_string();
        assert!(error.contains("column 'a' is not plain"), "{error}");
        assert!(write_text(&mut Vec::new(), b"a,b").unwrap_err().to_string().contains("comma"));
    }

    #[test]
    fn damaged_files_are_errors_never_panics() {
        let mut random = Random::new(7, "damaged tables");
        let whole = table(40, Compression::SNAPPY);
        for _ in 0..2000 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            if random.chance(0.2) {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            // Whatever comes of it, it comes as a value.
            if let Ok(mut text) = ParquetText::open(Bytes::from(bytes)) {
                let _ = io::copy(&mut text, &mut io::sink());
            }
        }
    }
}
