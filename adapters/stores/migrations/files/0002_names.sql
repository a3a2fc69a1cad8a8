ALTER TABLE files RENAME COLUMN described TO body;
