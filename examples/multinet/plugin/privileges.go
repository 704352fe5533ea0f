package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/metacni/metacni/delegate"
)

// The values of delegatePrivileges.
const (
	keepPrivileges  = "keep"  // a plugin may gain privileges, as if it were started by hand
	noNewPrivileges = "noNew" // neither the plugin nor its descendants may
)

// privileges has a value for types of plugins, and under "*" for all others.
type privileges map[string]string

// UnmarshalJSON reads an object, or a string that is for all types.
func (p *privileges) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		text = fmt.Appendf(nil, `{"*":%s}`, text)
	}
	return json.Unmarshal(text, (*map[string]string)(p))
}

// check fails if there is a value that has no meaning.
func (p privileges) check() error {
	for _, typ := range slices.Sorted(maps.Keys(p)) {
		if value := p[typ]; value != keepPrivileges && value != noNewPrivileges {
			return fmt.Errorf("%q for %q is neither %q nor %q", value, typ, keepPrivileges, noNewPrivileges)
		}
	}
	return nil
}

// ExecPlugin runs an executable with the privileges of its type.
func (x served) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if cmp.Or(x.privileges[filepath.Base(path)], x.privileges["*"]) == noNewPrivileges {
		ctx = delegate.WithOptions(ctx, delegate.ProcessOptions{NoNewPrivs: true})
	}
	return x.Exec.ExecPlugin(ctx, path, stdin, environ)
}
