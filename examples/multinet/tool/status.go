package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"strconv"
	"strings"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf/nad"
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
			return misused(errors.New("--socket-dir is for --diff"))
		}
		text, _, err := t.annotation(ctx, words[0])
		if errors.Is(err, errNoRecord) {
			return err
		}
		var all []status.Network
		err = errors.Join(json.Unmarshal([]byte(text), &all), err)
		var rows [][]string
		for _, n := range all {
			rows = append(rows, []string{n.Name, n.Interface, strings.Join(n.IPs, ","), n.MAC, strconv.FormatBool(n.Default)})
		}
		t.form = cmp.Or(t.form, "json")
		return errors.Join(t.print(json.RawMessage(text), "NETWORK INTERFACE ADDRESSES MAC DEFAULT", rows), err)
	})
}

// annotation returns the annotation of a container, and its pod. The pod has a UID only if
// that is the UID in the API: of a static pod the API has a mirror with another one.
func (t *tool) annotation(ctx context.Context, container string) (text string, pod nad.Pod, err error) {
	var all []status.Network
	err = t.of(ctx, container, func(r lifecycle.Record) error {
		networks := multinet.NetworkStatus(r)
		all = append(all, networks...)
		if !pod.Valid() {
			pod = multinet.PodOf(r)
		}
		for _, a := range r.Attached {
			if nad.ParseOrigin(a.Origin).StaticPod() {
				pod.UID = ""
			}
		}
		return device.Describe(t.life.Root, networks, r.Attached...)
	})
	text, _ = status.Annotation(all)
	return text, pod, err
}
