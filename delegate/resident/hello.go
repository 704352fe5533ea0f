package resident

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"unicode"
)

// protocol is the version of the messages.
const protocol = 1

const (
	maxHello = 64 << 10 // bytes of a hello or of its answer
	maxTypes = 64
	maxName  = 64 // bytes
)

// A hello is what a resident says of itself, and a welcome what it is answered.
type hello struct {
	Version int      `json:"version"`
	Index   string   `json:"index"`
	Name    string   `json:"name"`
	Types   []string `json:"types"`
}

type welcome struct {
	Version  int    `json:"version"`
	Error    string `json:"error,omitempty"`
	Requests bool   `json:"requests,omitempty"` // whether the resident may ask for updates
}

// Info is what a resident registers as.
type Info struct {
	Index string   // two digits
	Name  string   // letters, digits and _ . + -
	Types []string // of the plugins that it serves
}

// String returns "10-static": index and name.
func (i Info) String() string { return i.Index + "-" + i.Name }

// before is the order of residents.
func (i Info) before(j Info) int {
	return strings.Compare(i.Index+"\x00"+i.Name, j.Index+"\x00"+j.Name)
}

// check refuses what no resident may register as.
func (i Info) check() error {
	switch {
	case !isIndex(i.Index):
		return refused("index %.16q is not of two digits", i.Index)
	case !isName(i.Name):
		return refused("name %.80q is not of up to %d letters, digits and _ . + -, the first not a dot", i.Name, maxName)
	case len(i.Types) == 0:
		return refused("%s serves no types", i)
	case len(i.Types) > maxTypes:
		return refused("%s serves %d types, more than %d", i, len(i.Types), maxTypes)
	}
	for n, t := range i.Types {
		if !isType(t) {
			return refused("%s: type %.80q is not the name of a plugin", i, t)
		}
		if slices.Contains(i.Types[:n], t) {
			return refused("%s: type %q is there twice", i, t)
		}
	}
	return nil
}

func isIndex(s string) bool {
	return len(s) == 2 && strings.Trim(s, "0123456789") == ""
}

func isName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '.' {
		return false
	}
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-"
	return strings.Trim(s, allowed) == "" // what is not allowed stays, wherever it is
}

// isType reports whether s can be the name of a plugin's file: a type goes into
// paths, and into a header.
func isType(s string) bool {
	return s != "" && s[0] != '.' && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	})
}

// info understands a hello.
func (h hello) info() (Info, error) {
	i := Info{Index: h.Index, Name: h.Name, Types: h.Types}
	if h.Version != protocol {
		return i, refused("version %d of the messages is not known here, %d is", h.Version, protocol)
	}
	return i, i.check()
}

// hello is what i says of itself.
func (i Info) hello() hello {
	return hello{Version: protocol, Index: i.Index, Name: i.Name, Types: i.Types}
}

// readHello reads the one line that a resident says before it is answered.
func readHello(conn net.Conn) (h hello, err error) {
	buf := make([]byte, 0, 1024)
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, len(buf))
		}
		n, err := conn.Read(buf[len(buf):min(cap(buf), maxHello)])
		buf = buf[:len(buf)+n]
		if end := bytes.IndexByte(buf, '\n'); end >= 0 {
			if end != len(buf)-1 {
				return h, refused("there is more after the hello")
			}
			return h, decodeHello(buf, &h)
		}
		switch {
		case err != nil:
			return h, fmt.Errorf("%w: no hello: %w", ErrRefused, err)
		case len(buf) >= maxHello:
			return h, refused("the hello has more than %d bytes", maxHello)
		}
	}
}

func decodeHello(line []byte, h *hello) error {
	if err := json.Unmarshal(line, h); err != nil {
		// Not the decoder's words: they may quote what came.
		return refused("the hello is not the line of JSON expected")
	}
	return nil
}

// readWelcome reads one line and not a byte of what follows.
func readWelcome(conn net.Conn) (w welcome, err error) {
	var line []byte
	var b [1]byte
	for len(line) == 0 || line[len(line)-1] != '\n' {
		if len(line) >= maxHello {
			return w, errors.New("the answer is too long")
		}
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return w, err
		}
		line = append(line, b[0])
	}
	if err := json.Unmarshal(line, &w); err != nil {
		return w, fmt.Errorf("the answer is not the line of JSON expected: %w", err)
	}
	return w, nil
}

// writeLine writes v as one line of JSON.
func writeLine(conn net.Conn, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(data, '\n'))
	return err
}

// answer is the welcome of a resident that is not refused.
func (r *Host) answer() welcome {
	return welcome{Version: protocol, Requests: r.Update != nil}
}
