package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/device"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// status prints the network-status of a container. Its JSON is the value of the annotation
// k8s.v1.cni.cncf.io/network-status, as it would be written now. With --diff it compares that
// with what the API has.
func (t *tool) status(flags *flag.FlagSet) runner {
	compare := flags.Bool("diff", false, "compare with the annotation in the API")
	socketDir := flags.String("socket-dir", multinet.DefaultSocketDir, "`directory` of the daemon's socket")
	return t.onRecords(flags, func(ctx context.Context, words []string) error {
		if *compare {
			return t.diff(ctx, words[0], *socketDir)
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

// annotation returns the annotation of a container, and its pod. The pod has a UID only if
// that is the UID in the API: of a static pod the API has a mirror with another one. It fails
// if a record cannot be read; then the annotation is that of the others.
func (t *tool) annotation(ctx context.Context, container string) (text string, pod nad.Pod, err error) {
	records, err := t.of(ctx, container)
	var all []status.Network
	for _, r := range records {
		networks := multinet.NetworkStatus(r)
		err = errors.Join(err, device.Describe(t.life.Root, networks, r.Attached...))
		all = append(all, networks...)
		if !pod.Valid() {
			pod = multinet.PodOf(r)
		}
		if multinet.OfStaticPod(r) {
			pod.UID = ""
		}
	}
	text, _ = status.Annotation(all)
	return text, pod, err
}

// errDiffers is returned when a pod has another network-status in the API than in the
// records. The difference has been printed.
var errDiffers = errors.New("the network-status of the pod differs")

// diff compares the network-status of a container with what the API has. It asks the daemon
// whose socket is in socketDir.
func (t *tool) diff(ctx context.Context, container, socketDir string) error {
	recorded, pod, err := t.annotation(ctx, container)
	if err != nil {
		return err
	}
	if !pod.Valid() {
		return fmt.Errorf("container %q was not attached for a pod", container)
	}
	current, err := askDaemon(socketDir, pod)
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod, err)
	}
	out := newOutput("INTERFACE DIFFERENCE OF ENTRY")
	differs := false
	for _, p := range compare(entries(recorded), entries(current)) {
		out.add(p, p.Interface, cmp.Or(p.Difference, "equal"), "records", canonical(p.Recorded))
		out.row("", "", "pod", canonical(p.Pod)) // below each other, for people who compare
		differs = differs || p.Difference != ""
	}
	err = t.print(out)
	if err == nil && differs {
		err = errDiffers
	}
	return err
}

// A pairView is an entry of the network-status in the records, and the one in the pod's
// annotation for the same interface. Programs rely on its JSON.
type pairView struct {
	Interface  string          `json:"interface"`
	Difference string          `json:"difference,omitempty"` // "missing", "unexpected", "changed" or "moved"
	Recorded   json.RawMessage `json:"recorded,omitempty"`
	Pod        json.RawMessage `json:"pod,omitempty"`
}

// entries returns the elements of the list in text. Text that is no list is one element,
// as a JSON string.
func entries(text string) (list []json.RawMessage) {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		quoted, _ := json.Marshal(text) //nolint:errchkjson // a string has JSON
		return []json.RawMessage{quoted}
	}
	return list
}

// compare pairs the entries of both lists by their interfaces. It forgets the entries of pod.
func compare(recorded, pod []json.RawMessage) []pairView {
	var pairs []pairView
	next := 0 // where the entry after the last one is expected
	for _, r := range recorded {
		p := pairView{Interface: interfaceOf(r), Recorded: r, Difference: "missing"}
		same := func(entry json.RawMessage) bool { return entry != nil && interfaceOf(entry) == p.Interface }
		if i := slices.IndexFunc(pod, same); i >= 0 {
			p.Pod, p.Difference = pod[i], ""
			switch {
			case canonical(r) != canonical(p.Pod):
				p.Difference = "changed"
			case i < next:
				p.Difference = "moved"
			}
			pod[i], next = nil, i+1
		}
		pairs = append(pairs, p)
	}
	for _, entry := range pod {
		if entry != nil {
			pairs = append(pairs, pairView{Interface: interfaceOf(entry), Pod: entry, Difference: "unexpected"})
		}
	}
	return pairs
}

// interfaceOf returns the interface of an entry, or "".
func interfaceOf(entry json.RawMessage) string {
	var keys struct{ Interface string }
	_ = json.Unmarshal(entry, &keys) // an entry of another form has none
	return keys.Interface
}

// canonical returns the same line for the same JSON: its keys are sorted.
func canonical(entry json.RawMessage) string {
	var value any
	if json.Unmarshal(entry, &value) != nil {
		return string(entry)
	}
	text, _ := json.Marshal(value) //nolint:errchkjson // it was JSON
	return string(text)
}

// daemonTimeout is how long the daemon may take, which may have to ask the API.
const daemonTimeout = 30 * time.Second

// askDaemon returns the annotation network-status that the API has of pod. It asks the daemon
// whose socket is in dir.
func askDaemon(dir string, pod nad.Pod) (string, error) {
	query := url.Values{"namespace": {pod.Namespace}, "name": {pod.Name}, "uid": {pod.UID}}
	status, body, err := multinet.AskDaemon(filepath.Join(dir, multinet.SocketName), multinet.NetworkStatusPath+"?"+query.Encode(), daemonTimeout)
	if err != nil {
		return "", err
	}
	why := refusal(body)
	switch {
	case status == 200:
		return string(body), nil
	case status == 501, status == 404 && (strings.HasPrefix(why, "404 page") || strings.HasPrefix(why, "unknown path")):
		return "", errors.New("the daemon does not work with Kubernetes")
	case status == 404:
		return "", fmt.Errorf("it is gone: %s", why)
	case status == 503:
		return "", fmt.Errorf("the API cannot be asked at the moment: %s", why)
	}
	return "", fmt.Errorf("the daemon answers with status %d: %s", status, why)
}

// refusal returns body, an error object of CNI or plain text, in one line.
func refusal(body []byte) string {
	text := string(body)
	var e types.Error
	if json.Unmarshal(body, &e) == nil && e.Msg != "" {
		text = e.Error()
	}
	return strings.Join(strings.Fields(fmt.Sprintf("%.400s", text)), " ")
}
