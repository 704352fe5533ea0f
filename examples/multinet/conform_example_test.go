package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// The short plugin of the example passes the conformance checks, too.
func TestConformExample(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program(short.Execute), delegatetest.Config{
		Stdin: func(dir string) string {
			for file, conf := range map[string]string{
				"a.conflist": `{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"bridge"},{"type":"tuning"}]}`,
				"b.conflist": `{"cniVersion":"1.1.0","name":"storage","plugins":[{"type":"sriov"}]}`,
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(conf), 0o600); err != nil {
					panic(err)
				}
			}
			return fmt.Sprintf(`{"type":"multinet","confDir":%q,"dataDir":%q,"networks":[{"name":"pods"},{"name":"storage"}]}`, dir, filepath.Join(dir, "state"))
		},
		Delegates: []string{"bridge", "tuning", "sriov"},
	})
}
