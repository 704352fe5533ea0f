package delegatetest_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

func TestNewNetNSMakesANewNamespaceAndRemovesIt(t *testing.T) {
	t.Parallel()
	here, err := os.Stat("/proc/self/ns/net")
	nodetest.OK(t, err)
	seen := []os.FileInfo{here}
	for range 3 {
		path, remove, err := delegatetest.NewNetNS(t.TempDir(), "c1")
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		nodetest.OK(t, err)
		info, err := os.Stat(path)
		if err != nil {
			remove()
			t.Fatal(err)
		}
		defer func() {
			remove()
			// Another test may have opened a file of that number.
			if now, err := os.Stat(path); err == nil && os.SameFile(now, info) {
				t.Errorf("%s is still there", path)
			}
		}()
		for _, other := range seen {
			if os.SameFile(info, other) {
				t.Errorf("%s is not new", path)
			}
		}
		seen = append(seen, info)
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads %q: %v", threads, err)
	}
	for _, thread := range threads {
		if info, err := os.Stat(thread); err == nil && !os.SameFile(info, here) {
			t.Errorf("%s is in another namespace", thread)
		}
	}
}
