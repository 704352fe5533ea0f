package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// codeError is an error with a CNI code of its own.
type codeError uint

func (e codeError) Error() string { return fmt.Sprintf("code %d", uint(e)) }
func (e codeError) CNICode() uint { return uint(e) }

func TestError(t *testing.T) {
	t.Parallel()
	cause := errors.New("why")
	tests := []struct {
		err  netconf.Error
		text string
		code uint
	}{
		{netconf.Error{}, "cannot read configuration", 5},
		{netconf.Error{File: "f", Err: fs.ErrPermission}, `cannot read configuration: file "f": permission denied`, 5},
		{netconf.Error{Kind: netconf.ErrNotFound, Network: "n"}, `no such network: network "n"`, 7},
		{netconf.Error{Kind: netconf.ErrDecode, File: "f", Network: "n", Key: "k", Err: cause}, `cannot decode configuration: file "f", network "n", key "k": why`, 6},
		{netconf.Error{Kind: netconf.ErrInvalid, Key: "k"}, `invalid configuration: key "k"`, 7},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.text {
			t.Errorf("text is %q, want %q", got, tt.text)
		}
		if got := tt.err.CNICode(); got != tt.code {
			t.Errorf("%v: code is %d, want %d", &tt.err, got, tt.code)
		}
		for _, want := range []error{tt.err.Kind, tt.err.Err} {
			if want != nil && !errors.Is(&tt.err, want) {
				t.Errorf("%v is not %v", &tt.err, want)
			}
		}
	}
}

// An edit's own error keeps its kind and its code.
func TestEditErrorsKeepKindAndCode(t *testing.T) {
	t.Parallel()
	p := mustPlugin(t, `{"type":"a"}`)
	fail := func(err error) error {
		_, err = p.Edit(func(map[string]json.RawMessage) error { return err })
		return err
	}
	wantError{kind: netconf.ErrInvalid, code: 11}.check(t, fail(types.NewError(11, "later", "")))
	wantError{kind: netconf.ErrInvalid, code: 103, text: "outside: code 103"}.check(t, fail(fmt.Errorf("outside: %w", codeError(103))))
	_, inner := netconf.ParsePlugin([]byte(`[]`))
	wantError{kind: netconf.ErrDecode, text: "outside: cannot decode"}.check(t, fail(fmt.Errorf("outside: %w", inner)))
	wantError{kind: netconf.ErrDecode}.check(t, fail(inner))
	wantError{kind: netconf.ErrNotFound}.check(t, fail(fmt.Errorf("looking: %w", netconf.ErrNotFound)))
	wantError{kind: netconf.ErrInvalid}.check(t, fail(codeError(0)))
}

// wantError is what the tests ask of an error.
type wantError struct {
	kind    error
	code    uint
	file    string
	network string
	key     string
	text    string // part of the text
}

func (w wantError) check(t *testing.T, err error) {
	t.Helper()
	var e *netconf.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %T (%v), want *netconf.Error", err, err)
	}
	if _, ok := err.(*netconf.Error); !ok {
		t.Errorf("outermost error is %T, want *netconf.Error", err)
	}
	if e.Kind != w.kind || (w.kind != nil && !errors.Is(err, w.kind)) {
		t.Errorf("kind is %v, want %v (%v)", e.Kind, w.kind, err)
	}
	if w.code == 0 {
		w.code = 7
		if w.kind == netconf.ErrDecode {
			w.code = 6
		}
	}
	if e.CNICode() != w.code {
		t.Errorf("CNI code is %d, want %d", e.CNICode(), w.code)
	}
	got := []string{e.File, e.Network, e.Key}
	nodetest.Equal(t, "file, network, key", got, []string{w.file, w.network, w.key})
	if !strings.HasPrefix(err.Error(), "") || !strings.Contains(err.Error(), w.text) {
		t.Errorf("text is %q, want %q in it", err, w.text)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("text has more than one line: %q", err)
	}
	for _, field := range got {
		if !strings.Contains(err.Error(), strings.Trim(fmt.Sprintf("%q", field), `"`)) {
			t.Errorf("text %q does not name %q", err, field)
		}
	}
}
