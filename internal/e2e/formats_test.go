package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// An update or its opposite happens at any time: one release goes on with the records of the
// other, whole ones and those of a command that was killed.
func TestFormatsOfRecords(t *testing.T) {
	// killed kills the writer in a command, lets the fake that it has left end its work, and later ones
	// succeed. Then the reader goes on.
	killed := func(n *node, writer, reader, command string) *pod {
		p := n.pod(n.multinet("1.1.0", n.Fake("a"), n.Fake("b", "ADD", "gate")))
		n.from = writer
		if command == "DEL" {
			p.Conf["delegates"] = []object{n.Fake("a", "DEL", "gate"), n.Fake("b")}
			n.ok("ADD", p)
		}
		n.killed(command, p)
		n.Open()
		n.Cure()
		n.from = reader
		return p
	}
	for name, do := range map[string]func(n *node, writer, reader string){
		"CHECK, list, GC and DEL": func(n *node, writer, reader string) {
			n.network("red", n.with(n.Fake("r"), object{"cniVersion": "1.1.0"}))
			conf := n.multinet("1.1.0", n.Fake("a"), n.Fake("b"))
			p, stale := n.pod(conf).selects("red"), n.pod(conf).selects("red")
			n.from = writer
			n.ok("ADD", p)
			n.ok("ADD", stale)
			n.from = reader
			n.fails(7, "ADD", p, nil)
			n.ok("CHECK", p)
			list := n.operate(0, "list").Stdout
			nodetest.Equal(n, "listed as added: "+list, strings.Count(list, " added "), 6)
			n.ok("GC", p, valid(p))
			nodetest.Equal(n, "attached after GC", len(n.Live()), 3)
			n.from = writer
			n.ok("CHECK", p)
			n.from = reader
			n.ok("DEL", p, withoutNetNS)
		},
		"ADD killed, DEL": func(n *node, writer, reader string) {
			n.ok("DEL", killed(n, writer, reader, "ADD"), withoutNetNS)
		},
		"ADD killed, ADD and DEL": func(n *node, writer, reader string) {
			p := killed(n, writer, reader, "ADD")
			n.ok("ADD", p)
			n.from = writer
			n.ok("CHECK", p)
			n.ok("DEL", p)
		},
		"ADD killed, sweep": func(n *node, writer, reader string) {
			killed(n, writer, reader, "ADD")
			n.OrphansEnd()
			n.operate(0, "gc", "--bin-dir", n.Bin, "--conf-dir", n.File("net.d"))
		},
		"DEL killed, DEL": func(n *node, writer, reader string) {
			n.ok("DEL", killed(n, writer, reader, "DEL"))
		},
		"ADD and DEL failed, DEL": func(n *node, writer, reader string) {
			p := n.pod(n.multinet("1.1.0", n.Fake("a", "DEL", "fail"), n.Fake("b", "ADD", "fail")))
			n.from = writer
			n.fails(111, "ADD", p, nil)
			n.call("DEL", p)
			n.from = reader
			if list := n.operate(0, "list").Stdout; !strings.Contains(list, p.ID) {
				n.Errorf("not listed: %s", list)
			}
			n.call("DEL", p)
			n.Cure()
			n.from = writer
			n.ok("DEL", p)
		},
		"adopted, DEL": func(n *node, writer, reader string) {
			n.Mkdir("cni", "cache", "multus")
			p := n.pod(n.multinet("1.1.0"))
			text, err := json.Marshal(object{"cniVersion": "1.1.0", "name": n.Numbered("primary"), "plugins": []object{n.bridge(1)}})
			nodetest.OK(n, errors.Join(err, os.WriteFile(n.File("cni", "10-primary.conflist"), text, 0o600)))
			network, err := libcni.NetworkConfFromBytes(text)
			nodetest.OK(n, err)
			_, err = libcni.NewCNIConfigWithCacheDir([]string{n.Bin}, n.File("cache"), nil).AddNetworkList(n.Context(), network,
				&libcni.RuntimeConf{ContainerID: p.ID, NetNS: p.NetNS, IfName: p.IfName})
			nodetest.OK(n, err)
			n.from = writer
			n.operate(0, "adopt", "--network", n.Numbered("primary"), "--name", n.Numbered("multi"),
				"--conf-dir", n.File("cni"), "--cache-dir", n.File("cache"), "--multus-dir", n.File("multus"))
			n.from = reader
			n.ok("CHECK", p)
			n.ok("DEL", p)
			nodetest.Equal(n, "the runtime's cache", n.List(n.File("cache", "results")), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(n *node, writer, reader string) {
				do(n, writer, reader)
				n.OrphansEnd()
				n.nothingLeft()
			})
		})
	}
}

// more asks the daemon for a command about one more interface of p, attached by a fake.
func (n *node) more(command string, p *pod, on ...string) (reply, error) {
	n.Helper()
	other := *p
	other.IfName, other.Conf = "more0", n.with(n.Fake("more", on...), object{"name": "fakes", "cniVersion": "1.1.0"})
	return n.ask(http.MethodPost, wire.PathAttach, n.request(command, &other, nil))
}

// A daemon goes on with the networks that a daemon of the other release has attached to running
// containers, or was attaching when it was killed.
func TestFormatsOfHotPlug(t *testing.T) {
	bothWays(t, func(n *node, writer, reader string) {
		start := func(from string) *daemon {
			n.from = from
			return n.daemon(unswept(nil))
		}
		p, half := n.pod(n.thick("1.1.0", n.Fake("a"), n.Fake("b"))), n.pod(n.thick("1.1.0", n.Fake("a")))
		d := start(writer)
		n.ok("ADD", p)
		n.ok("ADD", half)
		r, err := n.more("ADD", p)
		nodetest.OK(n, err)
		n.isResult(r)
		answered := make(chan error, 1)
		go func() {
			_, err := n.more("ADD", half, "ADD", "gate")
			answered <- err
		}()
		n.Ready()
		d.Kill()
		if err := <-answered; err == nil {
			n.Error("a daemon that was killed has answered")
		}
		n.Open()
		n.OrphansEnd()

		d = start(reader)
		nodetest.Equal(n, "attached", n.attachments(p), []string{"eth0 added", "net1 added", "more0 added"})
		nodetest.Equal(n, "attached", slices.Contains(n.attachments(half), "more0 added"), false)
		n.ok("CHECK", p)
		n.ok("CHECK", half)
		r, err = n.more("DEL", p)
		nodetest.OK(n, err)
		r.done(n)
		r, err = n.more("ADD", p)
		nodetest.OK(n, err)
		n.isResult(r)
		d.Kill()

		start(writer)
		nodetest.Equal(n, "attached", n.attachments(p), []string{"eth0 added", "net1 added", "more0 added"})
		n.ok("DEL", p)
		n.ok("DEL", half, withoutNetNS)
		n.noTrace()
	})
}

// A daemon does the DELs that a shim of the other release has queued, also when a daemon was
// killed in the first of them. A shim does a DEL itself as the daemon's mark in the queue says.
func TestFormatsOfTheQueue(t *testing.T) {
	bothWays(t, func(n *node, writer, reader string) {
		n.from = writer
		d := n.daemon(unswept(nil))
		conf := func() object { return n.with(n.thick("1.1.0", n.Fake("a"), n.Fake("b")), object{"cniDir": nil}) }
		queued, killed, itself := n.pod(conf()), n.pod(n.thick("1.1.0", n.Fake("a"), n.Fake("b", "DEL", "gate"))), n.pod(conf())
		for _, p := range []*pod{queued, killed, itself} {
			n.ok("ADD", p)
		}
		d.Kill()
		n.from = reader
		n.ok("DEL", itself)
		nodetest.Equal(n, "queued", len(n.queued()), 0)
		n.from = writer
		for _, p := range []*pod{queued, killed} {
			p.Conf["queuePolicy"] = "queue"
			n.ok("DEL", p, withoutNetNS)
		}
		nodetest.Equal(n, "queued", len(n.queued()), 2)
		n.from = reader
		d = n.startDaemon(unswept(nil))
		n.Ready()
		d.Kill()
		n.Open()
		n.Cure()
		n.from = writer
		n.daemon(unswept(nil))
		n.noTrace()
	})
}

// A daemon attaches what a running pod selects, with the configuration that a daemon of the other
// release has saved of the last ADD: only there is where the plugins are. What it saves itself has
// the keys of a later release.
func TestFormatsOfSavedConfigurations(t *testing.T) {
	bothWays(t, func(n *node, writer, reader string) {
		api := newAPI(n)
		kubeconfig, err := api.Kubeconfig(n.Dir)
		nodetest.OK(n, err)
		text, err := json.Marshal(n.with(n.Fake("r"), object{"cniVersion": "1.1.0"}))
		nodetest.OK(n, err)
		kubetest.Put(api, kubetest.Definition{Namespace: "default", Name: "red", Config: string(text)})
		inAPI := func() *pod {
			p := n.pod(n.thick("1.1.0", n.Fake("a")))
			kubetest.Put(api, Pod{object{"namespace": "default", "name": p.ID, "uid": "4f8c"}, object{"nodeName": "n1"}})
			return p
		}
		selects := func(p *pod, networks string) {
			kubetest.Edit(api, "default", p.ID, func(o *Pod) {
				annotations, _ := o.Metadata["annotations"].(map[string]any)
				annotations = maps.Clone(annotations) // with the status, which a daemon has written
				if annotations == nil {
					annotations = map[string]any{}
				}
				annotations["k8s.v1.cni.cncf.io/networks"] = networks
				o.Metadata["annotations"] = annotations
			})
		}
		start := func(from string) *daemon {
			n.from = from
			return n.daemon(daemonConf{keys: object{"sweepInterval": "0s", "kubeconfig": kubeconfig, "nodeName": "n1", "reconcile": true, "events": "off"}})
		}
		p, after := inAPI(), inAPI()
		d := start(writer)
		n.ok("ADD", p)
		d.Kill()
		saved := n.File("state.asked", n.Numbered("multi"))
		text, err = os.ReadFile(saved)
		nodetest.OK(n, err)
		nodetest.OK(n, os.WriteFile(saved, append(text[:len(text)-1], `,"later":{"a":1}}`...), 0o600))

		d = start(reader)
		selects(p, "red")
		n.Until("red is attached", func() bool { return slices.Contains(n.Live(), "r@"+p.ID+"@net1") })
		n.ok("ADD", after)
		text, err = os.ReadFile(saved)
		nodetest.OK(n, err)
		if reader == "" && !bytes.Contains(text, []byte(`"later":{"a":1}`)) {
			n.Errorf("saved: %s", text)
		}
		d.Kill()

		start(writer)
		selects(p, "")
		n.Until("red is detached", func() bool { return !slices.Contains(n.Live(), "r@"+p.ID+"@net1") })
		n.ok("DEL", p)
		n.ok("DEL", after)
		n.noTrace()
	})
}

// A daemon knows from a daemon of the other release which types are those of resident plugins. It
// waits for one that has not registered yet, and does not look for an executable, which is
// nowhere.
func TestFormatsOfNotesOfResidents(t *testing.T) {
	bothWays(t, func(n *node, writer, reader string) {
		n.copyProgram("fake", "plugins")
		keys := daemonConf{keys: object{"sweepInterval": "0s", "relaySocket": n.File("relay"), "binDir": n.File("plugins")}}
		elsewhere := func(env map[string]string, _ object) { env["CNI_PATH"] = n.File("plugins") }
		resident := func() *process.Command {
			return n.Exec(built(filepath.Join(n.from, "resident")), nil, nil, "--socket", n.File("relay"))
		}
		p := n.pod(n.thick("1.1.0", n.Fake("a"), object{"type": "resident", "addresses": []string{"192.0.2.9/24"}}))
		n.from = writer
		d, r := n.daemon(keys), resident()
		notes := multinet.ResidentState(n.File("state"))
		n.Until("the resident is noted", func() bool { return slices.Contains(n.List(notes), "resident") })
		n.ok("ADD", p, elsewhere)
		r.Kill()
		d.Kill()

		n.from = reader
		n.daemon(keys)
		del := n.start("DEL", p, elsewhere)
		r = resident()
		for a := n.Wait(del); a.Code != 0; a = n.call("DEL", p, elsewhere) {
			n.failed(a, 11, "resident")
		}
		r.Kill()
		nodetest.Equal(n, "notes", n.List(notes), []string{"resident"})
		n.noTrace()
	})
}

// A record that a later release has written is read, and the keys that this release does not know
// are there after it has written the record again. The previous release works with the record too,
// but drops them:
//
//	                                  commit a27ab657    ours
//	a record, in each of its parts    dropped            kept
//	the configuration of a network    kept               kept
//	a queued DEL                      not written again  not written again
//	a claim                           dropped            kept
//	the last ADD of a network         dropped            kept
//	a note of a resident              has no keys        has no keys
func TestFormatsOfALaterRelease(t *testing.T) {
	bothWays(t, func(n *node, _, reader string) {
		p := n.pod(n.thick("1.1.0", n.with(n.Fake("a"), object{"later": "network"})))
		d := n.daemon(unswept(nil))
		n.ok("ADD", p)
		d.Kill()
		record := n.recordFile(p, "state")
		line, noted := n.lastRecord(record)
		value := line["value"].(object)
		entry := value["delegates"].([]any)[0].(object)
		line["later"], value["later"], entry["later"], entry["netns"].(object)["later"] = "line", "record", "entry", "netns"
		n.writeRecord(record, line, noted)

		n.from = reader
		n.daemon(unswept(nil))
		n.ok("CHECK", p)
		r, err := n.more("ADD", p)
		nodetest.OK(n, err)
		n.isResult(r)
		line, _ = n.lastRecord(record)
		text, err := json.Marshal(line)
		nodetest.OK(n, err)
		for _, kept := range map[string][]string{"": {"line", "record", "entry", "netns", "network"}, previous: {"network"}}[reader] {
			if !bytes.Contains(text, fmt.Appendf(nil, `"later":%q`, kept)) {
				n.Errorf("the key of the %s is gone: %s", kept, text)
			}
		}
		n.ok("DEL", p)
		n.noTrace()
	})
}

// lastRecord returns the last whole record in a file, and what has been noted since.
func (n *node) lastRecord(file string) (whole object, noted [][]byte) {
	n.Helper()
	text, err := os.ReadFile(file)
	nodetest.OK(n, err)
	for line := range bytes.Lines(text) {
		var read object
		if len(line) > 17 {
			nodetest.OK(n, json.Unmarshal(line[17:], &read))
		}
		if read["value"] != nil {
			whole, noted = read, nil
		} else {
			noted = append(noted, line)
		}
	}
	return whole, noted
}

// writeRecord is the opposite of lastRecord.
func (n *node) writeRecord(file string, whole object, noted [][]byte) {
	n.Helper()
	text, err := json.Marshal(whole)
	nodetest.OK(n, err)
	sum := sha256.Sum256(text)
	text = fmt.Appendf(nil, "%s %s\n", hex.EncodeToString(sum[:8]), text)
	nodetest.OK(n, os.WriteFile(file, append(text, bytes.Join(noted, nil)...), 0o600))
}

// previous is the directory of the programs of the previous release, below that of ours.
const previous = "previous"

// buildPrevious builds the programs of the commit in previous.txt into dir. It takes their
// sources out of the repository's history.
func buildPrevious(ctx context.Context, dir string) error {
	text, err := os.ReadFile("previous.txt")
	if err != nil {
		return err
	}
	lines := strings.Fields(string(text))
	commit := lines[len(lines)-1]
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	run := func(dir, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	source := filepath.Join(dir, "source")
	if err := os.MkdirAll(source, 0o700); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(source) }()
	tar := filepath.Join(dir, "source.tar")
	// The user who runs the tests may be another than the owner of the clone.
	if err := run(root, "git", "-c", "safe.directory=*", "archive", "-o", tar, commit); err != nil {
		return fmt.Errorf("needs the commit %s of internal/e2e/previous.txt, which the clone does not have; fetch the whole history: %w", commit, err)
	}
	if err := cmp.Or(run(source, "tar", "-xf", tar), os.Remove(tar)); err != nil {
		return err
	}
	for module, packages := range map[string][]string{
		".":                  {"./examples/multinet", "./examples/multinet-shim", "./examples/resident"},
		"examples/multinetd": {"."},
	} {
		args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", dir + "/"}, packages...)
		if err := run(filepath.Join(source, module), "go", args...); err != nil {
			return fmt.Errorf("the programs of the commit %s cannot be built: %w", commit, err)
		}
	}
	return nil
}

// bothWays runs do twice: with files of the previous release for our programs, and the other way
// round. do sets n.from to one of the two.
func bothWays(t *testing.T, do func(n *node, writer, reader string)) {
	t.Helper()
	for _, way := range []struct{ name, writer, reader string }{{"previous to ours", previous, ""}, {"ours to previous", "", previous}} {
		t.Run(way.name, func(t *testing.T) {
			n := newNode(t)
			switch why, err := os.ReadFile(built(previous + ".missing")); {
			case errors.Is(err, fs.ErrNotExist): // nothing is missing
			case os.Getenv("METACNI_E2E") == "require":
				t.Fatalf("%s, %v", why, err)
			default:
				t.Skipf("%s", why)
			}
			do(n, way.writer, way.reader)
		})
	}
}

// A Pod is a pod as the API server has it.
type Pod struct {
	Metadata object `json:"metadata"`
	Spec     object `json:"spec"`
}

// newAPI starts an API server in this process.
func newAPI(tb testing.TB) *kubetest.Server {
	tb.Helper()
	api := kubetest.NewServer(func([]byte, *int, any) (any, *int, error) { // of Events, which nobody reads
		return object{"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": object{"name": rand.Text()}}, nil, nil
	})
	tb.Cleanup(api.Close)
	return api
}
