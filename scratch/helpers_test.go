package scratch

// encodeRecord and decodeAs are encode and decode for a type of value.
func encodeRecord[T any](r Record[T]) ([]byte, error) { return encode(storedOf(r)) }

func decodeAs[T any](data []byte, k Key) (Record[T], error) {
	r, err := decode(data, k, Store[T]{}.files().value)
	return typed[T](r), err
}
