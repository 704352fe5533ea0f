package help_test

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/examples/multinet/help"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	flags := flag.NewFlagSet("x", flag.ContinueOnError)
	flags.String("dir", "/state", "state `directory`")
	flags.Bool("all", false, "all of them")
	flags.Bool("some", true, "some of them")
	flags.Duration("wait", time.Minute, "`time` to wait")
	flags.String("o", "", "`form` of the output")
	var out strings.Builder
	help.Flags(&out, flags)
	nodetest.Equal(t, "help", out.String(), `  --all        all of them
  --dir DIR    state directory [/state]
  -o FORM      form of the output
  --some       some of them [true]
  --wait TIME  time to wait [1m0s]
`)
	out.Reset()
	help.Flags(&out, flag.NewFlagSet("none", flag.ContinueOnError))
	nodetest.Equal(t, "help without flags", out.String(), "")
}
