//! Rows as a Parquet file: one row group, the columns of the first row.

use super::rows::Cell;
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::path::Path;
use std::sync::Arc;

/// Writes rows, all of the same columns. Counts are INT64, text is UTF-8, yes and no are BOOLEAN; what a row does not have is null.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_rows<N: AsRef<str>>(path: &Path, rows: &[Row<N>]) -> Result<()> {
    guard::whole(path, |file| {
        encode(file, rows).map_err(|why| Error::io(path.display(), std::io::Error::other(why)))
    })
}

type Row<N> = Vec<(N, Cell)>;

fn encode<N: AsRef<str>>(file: &mut std::fs::File, rows: &[Row<N>]) -> Result<(), ParquetError> {
    let columns = rows.first().map_or(&[][..], Vec::as_slice);
    let fields = columns
        .iter()
        .map(|(name, cell)| field(name.as_ref(), cell).map(Arc::new))
        .collect::<Result<_, _>>()?;
    let schema = Arc::new(Type::group_type_builder("runs").with_fields(fields).build()?);
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::builder().build()))?;
    let mut group = writer.next_row_group()?;
    let mut at = 0;
    while let Some(column) = group.next_column()? {
        write_column(column, rows.iter().map(|row| &row[at].1))?;
        at += 1;
    }
    group.close()?;
    writer.close().map(drop)
}

fn field(name: &str, cell: &Cell) -> Result<Type, ParquetError> {
    let (physical, logical) = match cell {
        Cell::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Cell::Count(_) => (Physical::INT64, None),
        Cell::Number(_) => (Physical::DOUBLE, None),
        Cell::Yes(_) => (Physical::BOOLEAN, None),
    };
    let builder = Type::primitive_type_builder(name, physical);
    builder.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build()
}

fn write_column<'a>(
    mut column: SerializedColumnWriter<'_>,
    cells: impl Iterator<Item = &'a Cell>,
) -> Result<(), ParquetError> {
    let (mut texts, mut counts, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut answers, mut levels) = (Vec::new(), Vec::new());
    for cell in cells {
        levels.push(i16::from(!cell.is_empty()));
        match cell {
            Cell::Text(text) => texts.extend(text.as_deref().map(ByteArray::from)),
            Cell::Count(count) => counts.extend(count.map(|count| i64::try_from(count).unwrap_or(i64::MAX))),
            Cell::Number(number) => numbers.extend(*number),
            Cell::Yes(yes) => answers.extend(*yes),
        }
    }
    match column.untyped() {
        ColumnWriter::ByteArrayColumnWriter(writer) => writer.write_batch(&texts, Some(&levels), None)?,
        ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&counts, Some(&levels), None)?,
        ColumnWriter::BoolColumnWriter(writer) => writer.write_batch(&answers, Some(&levels), None)?,
        ColumnWriter::DoubleColumnWriter(writer) => writer.write_batch(&numbers, Some(&levels), None)?,
        _ => return Err(ParquetError::General("a column of a kind that no cell has".to_string())),
    };
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    #[test]
    fn rows_are_read_back_as_written() {
        let rows: Vec<Row<&str>> = vec![
            vec![
                ("trace", Cell::Text(Some("a,b".into()))),
                ("erases", Cell::Count(Some(7))),
                ("wa", Cell::Number(None)),
                ("drain", Cell::Yes(Some(true))),
            ],
            vec![
                ("trace", Cell::Text(Some("c".into()))),
                ("erases", Cell::Count(None)),
                ("wa", Cell::Number(Some(1.5))),
                ("drain", Cell::Yes(None)),
            ],
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.parquet");
        encode(&mut std::fs::File::create(&path).unwrap(), &rows).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let read: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        let expected = [
            "{trace: \"a,b\", erases: 7, wa: null, drain: true}",
            "{trace: \"c\", erases: null, wa: 1.5, drain: null}",
        ];
        assert_eq!(read, expected);
    }
}
