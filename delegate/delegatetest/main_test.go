package delegatetest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// programs holds the plugins that the test binary can be, by the name of the
// executable.
var programs = map[string]func(){
	"echo": echoMain, "meta": metaMain, "meta-skel": metaSkelMain, "meta-cheerful": metaCheerfulMain, "meta-silent": metaSilentMain, "meta-other": metaOtherMain, "meta-deaf": metaDeafMain,
}

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "forgetful" {
		forgetfulMain()
		os.Exit(0)
	}
	delegatetest.Main()
	if program := programs[filepath.Base(os.Args[0])]; program != nil {
		program()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// executable returns the path of the test binary under another name.
func executable(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}
