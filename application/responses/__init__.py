"""Operations of `/v1/responses`: create, stream, get, list, cancel, delete, compact, count."""
