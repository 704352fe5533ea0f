package main_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// The short plugin of the example passes the conformance checks, too.
func TestConformExample(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program(short.Execute), delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"flannel","dataDir":%q,"subnet":"10.9.1.0/24","delegate":{"type":"bridge"}}`, filepath.Join(dir, "state"))
		},
		Delegates: []string{"bridge"},
	})
}
