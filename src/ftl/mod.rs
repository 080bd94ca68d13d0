//! Flash translation: what stands between logical pages and NAND, one scheme a file.
