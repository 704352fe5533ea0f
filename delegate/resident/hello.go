package resident

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode"
)

// protocol is the version of the messages. Version 1 was HTTP/2.
const protocol = 2

const (
	callCommand     = "cni"         // host to resident
	callSynchronize = "synchronize" // host to resident
	callRequest     = "request"     // resident to host

	// These have no ID. The answer to a ping is the empty message; the answer to
	// leave is the end of the connection.
	callPing  = "ping"
	callLeave = "leave"
)

const (
	maxHello = 32 << 10 // bytes of a hello or of its answer
	maxTypes = 64
	maxName  = 64 // bytes
)

// A hello is the first line of a resident, and a welcome the host's answer.
type hello struct {
	Version int `json:"version"`
	Info
}

type welcome struct {
	Version  int    `json:"version"`
	Error    string `json:"error,omitempty"`
	Requests bool   `json:"requests,omitempty"` // the host takes requests
}

// Info identifies a resident plugin.
type Info struct {
	Index string   `json:"index"` // two digits
	Name  string   `json:"name"`  // letters, digits and _ . + -
	Types []string `json:"types"` // the plugin types it serves
}

// String returns index and name: "10-static".
func (i Info) String() string { return i.Index + "-" + i.Name }

// before compares the places of two residents.
func (i Info) before(j Info) int {
	return strings.Compare(i.Index+"\x00"+i.Name, j.Index+"\x00"+j.Name)
}

// check refuses an invalid Info.
func (i Info) check() error {
	switch {
	case !isIndex(i.Index):
		return refused("index %.16q is not two digits", i.Index)
	case !isName(i.Name):
		return refused("name %.80q is not 1 to %d letters, digits and _ . + -, or begins with a dot", i.Name, maxName)
	case len(i.Types) == 0:
		return refused("%s serves no types", i)
	case len(i.Types) > maxTypes:
		return refused("%s serves %d types, more than %d", i, len(i.Types), maxTypes)
	}
	for n, t := range i.Types {
		if !isType(t) {
			return refused("%s: type %.80q is not a valid plugin name", i, t)
		}
		if slices.Contains(i.Types[:n], t) {
			return refused("%s: type %q is listed twice", i, t)
		}
	}
	return nil
}

func isIndex(s string) bool {
	return len(s) == 2 && strings.Trim(s, "0123456789") == ""
}

func isName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-"
	return s != "" && len(s) <= maxName && s[0] != '.' && strings.Trim(s, allowed) == ""
}

// isType reports whether s can be the file name of a plugin. A type becomes part
// of paths and log lines.
func isType(s string) bool {
	return s != "" && s[0] != '.' && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	})
}

// check refuses an invalid hello.
func (h hello) check() error {
	if h.Version != protocol {
		return refused("version %d of the protocol is not supported, only version %d: build the plugin and the daemon with the same release of the SDK", h.Version, protocol)
	}
	return h.Info.check()
}

// errLine means that a line is not a JSON object.
var errLine = errors.New("is not a JSON object on one line")

// readLine reads one line of JSON.
func readLine(in *bufio.Reader, v any) error {
	line, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("has more than %d bytes", in.Size())
	case err != nil:
		return fmt.Errorf("is missing: %w", err)
	case json.Unmarshal(line, v) != nil:
		return errLine // the decoder's text may quote the line
	}
	return nil
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
