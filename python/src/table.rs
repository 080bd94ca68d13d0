//! Rows of JSON as a table of Arrow, which whoever knows Arrow's C stream interface takes without a copy.

use crate::raised;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchOptions,
    StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use bimetal_base::Error;
use bimetal_lab::replay::{Cell, grid};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// A table: columns by name.
#[pyclass(frozen, module = "bimetal._bimetal")]
pub struct Table {
    batch: RecordBatch,
}

#[pymethods]
impl Table {
    /// The table of lines of JSON: the leaves of their values by their paths, as `rows.parquet` has them.
    #[staticmethod]
    fn of_json(lines: Vec<String>) -> PyResult<Table> {
        let parsed: Result<Vec<_>, _> = lines.iter().map(|line| serde_json::from_str(line)).collect();
        let parsed = parsed.map_err(|why| raised(Error::invalid(format!("a row is no JSON: {why}"))))?;
        let batch = batch(&grid::cells(&parsed)).map_err(|why| raised(Error::invalid(why.to_string())))?;
        Ok(Table { batch })
    }

    /// How many rows there are.
    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The table as a stream of Arrow's C interface. No other schema than its own is made.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

/// The cells as columns.
fn batch(rows: &[Vec<(String, Cell)>]) -> Result<RecordBatch, ArrowError> {
    let names = rows.first().map(Vec::as_slice).unwrap_or_default();
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (at, (name, _)) in names.iter().enumerate() {
        let (kind, column) = column(rows.iter().map(|row| &row[at].1));
        fields.push(Field::new(name, kind, true));
        columns.push(column);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}

/// A column of cells that are of one kind.
fn column<'a>(cells: impl Iterator<Item = &'a Cell>) -> (DataType, ArrayRef) {
    let (mut texts, mut counts, mut numbers, mut answers) = (vec![], vec![], vec![], vec![]);
    for cell in cells {
        match cell {
            Cell::Text(text) => texts.push(text.as_deref()),
            // As Parquet has them.
            Cell::Count(count) => counts.push(count.map(|count| i64::try_from(count).unwrap_or(i64::MAX))),
            Cell::Number(number) => numbers.push(*number),
            Cell::Yes(yes) => answers.push(*yes),
        }
    }
    if !counts.is_empty() {
        return (DataType::Int64, Arc::new(Int64Array::from(counts)));
    }
    if !numbers.is_empty() {
        return (DataType::Float64, Arc::new(Float64Array::from(numbers)));
    }
    match answers.is_empty() {
        true => (DataType::Utf8, Arc::new(StringArray::from(texts))),
        false => (DataType::Boolean, Arc::new(BooleanArray::from(answers))),
    }
}
