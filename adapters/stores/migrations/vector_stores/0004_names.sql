ALTER TABLE stores RENAME COLUMN described TO body;
ALTER TABLE chunks RENAME COLUMN repeats TO overlap_chars;
