package program

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metacni/metacni/netconf"
)

// ReadFile returns the content of the file at path, which must be a regular one: opening
// a FIFO would wait for a writer.
func ReadFile(path string) ([]byte, error) {
	data, err := netconf.ReadFile(os.DirFS(filepath.Dir(path)), filepath.Base(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// Decode decodes one JSON object. It refuses keys that the value does not have, which are
// probably misspelt, and two values for a key, see [netconf.Decode].
func Decode[T any](text []byte, value *T) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil || string(bytes.TrimSpace(text)) == "null" {
		return err
	}
	_, err := netconf.Decode[T](text)
	return err
}

// Absolute fails if the path of a key is relative. It may be empty.
func Absolute(key, path string) error {
	if path != "" && !filepath.IsAbs(path) {
		return fmt.Errorf("%s %q is not an absolute path", key, path)
	}
	return nil
}

// OneOf fails if the value of a key is none of these.
func OneOf[S ~string](key string, value S, of ...S) error {
	if slices.Contains(of, value) {
		return nil
	}
	return fmt.Errorf("%s %q is none of %q", key, value, of)
}

// NotNegative fails if the value of a key is negative.
func NotNegative[N int | float64 | time.Duration](key string, value N) error {
	if value < 0 {
		return fmt.Errorf("%s %v is negative", key, value)
	}
	return nil
}
