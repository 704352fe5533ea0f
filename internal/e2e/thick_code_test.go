package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// TestErrorsPassThroughDaemonAndShim: for every command, a plugin's error
// reaches the runtime through daemon and shim as it does through multinet
// alone, with the same code and text and without any of the configuration.
func TestErrorsPassThroughDaemonAndShim(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			d := w.daemon(daemonConf{keys: object{"logLevel": "debug"}})
			fails := func(code uint) object {
				return w.with(w.fake("a", command, "fail"), object{"code": code, "password": secret})
			}
			for _, code := range []uint{4, 5, 6, 7, 11, 50, 51, 107, 999} {
				thin, thick := w.pod(w.multinet("1.1.0", fails(code))), w.pod(w.thick("1.1.0", fails(code)))
				var said [2]types.Error
				for i, p := range []*pod{thin, thick} {
					if command != "ADD" {
						p.result = w.call("ADD", p).stdout
					}
					a := w.call(command, p, valid(thin, thick))
					if a.err == nil {
						t.Fatalf("%s of %v succeeded although its plugin fails: %s", command, p.conf["type"], a.stdout)
					}
					if strings.Contains(string(a.stdout)+a.stderr, secret) {
						t.Errorf("the secret was printed: %s %s", a.stdout, a.stderr)
					}
					said[i] = *a.err
					said[i].Msg = strings.ReplaceAll(a.err.Msg, p.id, "C")
				}
				same(t, fmt.Sprintf("error with code %d", code), said[0], said[1])
				if command == "ADD" || command == "DEL" {
					same(t, "code", code, said[1].Code)
				}
				w.cure()
				for _, p := range []*pod{thin, thick} {
					w.ok("DEL", p)
				}
				w.sicken()
			}
			if strings.Contains(d.log.String(), secret) {
				t.Errorf("the secret is in the log:\n%s", d.log.String())
			}
			w.noTrace()
			w.figures("error codes through the shim: "+command, 9)
		})
	}
}

// TestShimPrintsResultsInEveryVersion: the shim prints the same result as
// multinet alone, in every version of the protocol.
func TestShimPrintsResultsInEveryVersion(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		p := w.pod(nil)
		delegate := w.with(w.fake("a"), object{"name": "a", "cniVersion": "1.0.0"})
		var results [2]object
		for i, conf := range []object{w.multinet(version, delegate), w.thick(version, maps.Clone(delegate))} {
			p.conf = conf
			w.ok("ADD", p)
			if err := json.Unmarshal(p.result, &results[i]); err != nil {
				t.Fatal(err)
			}
			if results[i]["cniVersion"] != version || !bytes.Contains(p.result, []byte("192.0.2.2/24")) {
				t.Errorf("version %s: %s", version, p.result)
			}
			if version == "0.1.0" || version == "0.2.0" || version == "0.3.0" {
				p.result = nil // no CHECK, no prevResult
			}
			w.ok("DEL", p)
		}
		same(t, "result of version "+version, results[0], results[1])
	}
	w.noTrace()
}

// TestShimWithPolicyExecDoesTheDELItself: with delPolicy "exec" and no daemon,
// the shim itself does a DEL from the records, once the orphaned plugin of a
// killed daemon has exited.
func TestShimWithPolicyExecDoesTheDELItself(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(daemonConf{})
	conf := func(delegates ...object) object {
		return w.with(w.thick("1.1.0", delegates...), object{"delPolicy": "exec"})
	}
	whole := w.pod(conf(w.bridge(1), w.fake("whole")))
	w.ok("ADD", whole)
	half := w.pod(conf(w.bridge(1), w.fake("half", "ADD", "gate")))
	add := w.start("ADD", half)
	w.ready()
	d.kill()
	w.failed(w.wait(add), 11)

	w.ok("DEL", whole, withoutNetNS)
	same(t, "interfaces", nil, w.interfaces(whole))
	del := w.start("DEL", half)
	w.waitsForLock(del)
	w.open()
	w.done(del)
	w.noTrace()
	w.daemon(daemonConf{})
	for _, p := range []*pod{whole, half} {
		w.ok("DEL", p)
	}
	w.noTrace()

	failing := w.pod(w.with(w.thick("1.1.0", w.fake("a")), object{"delPolicy": "fail"}))
	failing.conf["daemonSocketDir"] = w.file("nowhere")
	w.fails(11, "DEL", failing, nil)
}
