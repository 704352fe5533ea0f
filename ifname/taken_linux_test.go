package ifname_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/metacni/metacni/ifname"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestTakenErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	nodetest.OK(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name, path string
		code       uint
		missing    bool
	}{
		{"missing", filepath.Join(t.TempDir(), "gone"), 4, true},
		{"empty", "", 4, true},
		{"process gone", "/proc/0/ns/net", 4, true},
		{"file", file, 4, false},
		{"directory", t.TempDir(), 4, false},
		{"another kind of namespace", "/proc/self/ns/uts", 4, false},
		{"below a file", file + "/net", 5, false},
		{"NUL", "a\x00b", 5, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			names, err := ifname.Taken(tt.path)
			var e *ifname.Error
			if names != nil || !errors.As(err, &e) {
				t.Fatalf("Taken = %q, %v; want an *ifname.Error", names, err)
			}
			if e.NetNS != tt.path || e.CNICode() != tt.code || errors.Is(err, fs.ErrNotExist) != tt.missing {
				t.Errorf("error %v: path %q, code %d, not-exist %t; want %q, %d, %t",
					err, e.NetNS, e.CNICode(), !tt.missing, tt.path, tt.code, tt.missing)
			}
			if !strings.Contains(err.Error(), fmt.Sprintf("%q", tt.path)) {
				t.Errorf("error %q does not name the path", err)
			}
		})
	}
}

// Several goroutines may ask at once.
func TestTakenTogether(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := ifname.Taken("/proc/self/ns/net"); err != nil && os.Geteuid() == 0 {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
