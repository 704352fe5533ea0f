package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"strconv"
	"strings"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

// status prints the network-status of a container. Its JSON is the value of the annotation
// k8s.v1.cni.cncf.io/network-status, as it would be written now. With --diff it compares that
// with what the API has.
func (t *tool) status(flags *flag.FlagSet) runner {
	compare := flags.Bool("diff", false, "compare with the annotation in the API, which the daemon is asked for")
	socketDir := flags.String("socket-dir", "", "with --diff: `directory` of the daemon's socket (default "+wire.DefaultDir+")")
	return t.onRecords(flags, func(ctx context.Context, words []string) error {
		switch {
		case *compare:
			return t.diff(ctx, words[0], cmp.Or(*socketDir, wire.DefaultDir))
		case *socketDir != "":
			return errors.New("--socket-dir is for --diff")
		}
		text, _, err := t.annotation(ctx, words[0])
		if errors.Is(err, errNoRecord) {
			return err
		}
		out := newOutput("NETWORK INTERFACE ADDRESSES MAC DEFAULT")
		for _, entry := range entries(text) {
			var n status.Network
			err = errors.Join(err, json.Unmarshal(entry, &n))
			out.add(entry, n.Name, n.Interface, strings.Join(n.IPs, ","), n.MAC, strconv.FormatBool(n.Default))
		}
		t.form = cmp.Or(t.form, "json")
		return errors.Join(t.print(out), err)
	})
}
