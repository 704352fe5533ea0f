package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestDaemonAttachesOneMoreNetwork: the daemon attaches one more network to a
// running container. It lists that network with the others, CHECK and GC
// include it, and the DEL of the sandbox or its own detaches it.
func TestDaemonAttachesOneMoreNetwork(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.bridge(1), w.fake("a")))
	other := w.pod(w.thick("1.1.0", w.fake("other")))
	w.ok("ADD", p)
	w.ok("ADD", other)
	request := func(command, ifname string, conf object) reply {
		t.Helper()
		more := *p
		more.conf, more.ifname = conf, ifname
		r, err := w.ask(http.MethodPost, wire.PathAttach, w.request(command, &more, object{"interfaceAttributes": object{"mac": "02:00:00:00:77:01"}}))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	green := w.with(w.bridge(5), object{"name": w.name("green"), "cniVersion": "1.0.0", "capabilities": object{"mac": true}})
	fakes := w.with(w.fake("h"), object{"name": "fakes", "cniVersion": "1.1.0", "capabilities": object{"mac": true}})
	w.isResult(request("ADD", "more0", green))
	w.isResult(request("ADD", "more1", fakes))
	request("ADD", "more1", fakes).says(t, http.StatusInternalServerError, 7, "more1")
	same(t, "interfaces", []string{"eth0", "more0"}, w.interfaces(p))
	same(t, "MAC", "02:00:00:00:77:01", w.find(p, "more0").MAC)
	same(t, "listed", []string{"eth0 added", "net1 added", "more0 added", "more1 added"}, w.attachments(p))
	same(t, "listed", []string{"eth0 added"}, w.attachments(other))
	for _, ifname := range []string{"more0", "more1"} {
		if r := request("CHECK", ifname, fakes); r.status != http.StatusOK {
			t.Errorf("CHECK %s: %s", ifname, r.body)
		}
	}
	w.ok("CHECK", p)
	w.ok("GC", p, valid(p, other))
	same(t, "interfaces", []string{"eth0", "more0"}, w.interfaces(p))

	for range 2 {
		if r := request("DEL", "more1", fakes); r.status != http.StatusOK {
			t.Errorf("DEL more1: %s", r.body)
		}
	}
	same(t, "listed", []string{"eth0 added", "net1 added", "more0 added"}, w.attachments(p))
	w.isResult(request("ADD", "more1", fakes))
	w.ok("DEL", p, withoutNetNS)
	same(t, "interfaces", nil, w.interfaces(p))
	same(t, "listed", nil, w.attachments(p))
	w.ok("DEL", other)
	w.noTrace()
}

// attachments lists p's attachments and their states, as the daemon reports
// them.
func (w *world) attachments(p *pod) (list []string) {
	w.t.Helper()
	r, err := w.ask(http.MethodGet, wire.PathAttach+"?container="+p.id, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []struct{ ContainerID, IfName, State string }
	if err := json.Unmarshal(r.body, &all); err != nil {
		w.t.Fatalf("%v: %s", err, r.body)
	}
	for _, a := range all {
		if a.ContainerID != p.id {
			w.t.Errorf("%+v is not of %s", a, p.id)
		}
		list = append(list, a.IfName+" "+a.State)
	}
	return list
}

// TestDELCancelsAnAttachInTheDaemon: a DEL of the sandbox that arrives while
// the daemon attaches one more network cancels that. It is undone, and nothing
// is left.
func TestDELCancelsAnAttachInTheDaemon(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	w.ok("ADD", p)
	more := *p
	more.conf, more.ifname = w.with(w.fake("h", "ADD", "gate"), object{"name": "fakes", "cniVersion": "1.1.0"}), "more0"
	body := w.request("ADD", &more, nil)
	answered := make(chan reply, 1)
	go func() {
		r, err := w.ask(http.MethodPost, wire.PathAttach, body)
		if err != nil {
			t.Error(err)
		}
		answered <- r
	}()
	w.ready()
	w.ok("DEL", p, withoutNetNS)
	r := <-answered
	r.says(t, http.StatusInternalServerError, 11)
	w.noTrace()
}

// TestMultusClientAttachesAndDetaches: real plugins attach and detach what
// Multus's own client, multus-dynamic-networks-controller, requests. Its
// CNI_ARGS name the pod and lack IgnoreUnknown.
func TestMultusClientAttachesAndDetaches(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.bridge(1)))
	w.ok("ADD", p)
	// A network definition as Kubernetes stores it, with white space.
	definition := fmt.Sprintf(`{
		"cniVersion": "1.0.0", "name": %q, "type": "bridge", "bridge": %q, "capabilities": {"mac": true},
		"ipam": {"type": "host-local", "subnet": "%s.0/24"}
	}`, w.name("green"), w.name("br5-"), w.net(5))
	ask := func(command, attributes string) reply {
		t.Helper()
		// The client sends a struct: its keys are not sorted.
		body := fmt.Sprintf(`{"env":{"CNI_ARGS":"K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s;K8S_POD_UID=4f8c","CNI_COMMAND":%q,`+
			`"CNI_CONTAINERID":%q,"CNI_IFNAME":"net1","CNI_NETNS":%q},"config":%q%s}`,
			p.id, command, p.id, p.netns, base64.StdEncoding.EncodeToString([]byte(definition)), attributes)
		r, err := w.ask(http.MethodPost, wire.PathAttach, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, attributes := range []string{``, `,"interfaceAttributes":{"mac":"02:00:00:00:77:01","cni-args":null}`} {
		w.isResult(ask("ADD", attributes))
		same(t, "interfaces", []string{"eth0", "net1"}, w.interfaces(p))
		w.ok("CHECK", p)
		if r := ask("DEL", attributes); r.status != http.StatusOK {
			t.Errorf("DEL: %s", r.body)
		}
		same(t, "interfaces", []string{"eth0"}, w.interfaces(p))
		same(t, "addresses", 1, len(w.leases()))
	}
	// A request that cannot be fulfilled is refused before a plugin runs.
	ask("ADD", `,"interfaceAttributes":{"ips":["10.9.1.7/24"],"cni-args":null}`).says(t, http.StatusInternalServerError, 7, `"ips"`, w.name("green"))

	w.isResult(ask("ADD", ``))
	w.ok("DEL", p)
	same(t, "interfaces", nil, w.interfaces(p))
	w.noTrace()
}
