// Package printed reads and quotes what plugins print.
package printed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Quoted is how many bytes of an output errors quote. None quotes more than two.
const Quoted = 240

// Document returns what a plugin has printed. It fails unless that is exactly one JSON document.
func Document(stdout []byte) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(stdout))
	var doc json.RawMessage
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("stdout %q is no JSON document: %w", Clip(stdout), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("stdout %q is more than one JSON document", Clip(stdout))
	}
	return doc, nil
}

// Clip returns the first part of an output, and JSON without white space.
func Clip(b []byte) []byte {
	var compact bytes.Buffer
	if json.Compact(&compact, b) == nil {
		b = compact.Bytes()
	}
	if len(b) > Quoted {
		return append(slices.Clone(b[:Quoted]), "..."...)
	}
	return b
}

// Failure is the error of a plugin that has ended in a way, and has printed no error object. It quotes
// the end of stderr, or the panic there.
func Failure(how string, stdout, stderr []byte) error {
	stderr = bytes.TrimSpace(stderr)
	if i := bytes.Index(stderr, []byte("panic: ")); i >= 0 {
		stderr = Clip(stderr[i:])
	} else {
		stderr = stderr[max(0, len(stderr)-Quoted):]
	}
	return fmt.Errorf("%s, stdout %q, stderr %q", how, Clip(stdout), stderr)
}

// An Output collects what several goroutines print.
type Output struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// Bytes returns a copy of what has been printed until now.
func (o *Output) Bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.buf.Bytes())
}
