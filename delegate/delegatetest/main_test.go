package delegatetest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// programs are what the test binary is as well, by the name it is called with.
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

// executable is the path of the test binary under another name.
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
