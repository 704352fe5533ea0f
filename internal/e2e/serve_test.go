package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// isResult fails the test unless r is an answer to ADD that the shim of Multus
// can decode.
func (n *node) isResult(r reply) {
	n.Helper()
	var answer struct{ Result *types100.Result }
	if err := json.Unmarshal(r.Body, &answer); err != nil || r.Status != http.StatusOK || answer.Result == nil {
		n.Fatalf("status %d, %v: %s", r.Status, err, r.Body)
	}
	if len(answer.Result.IPs) == 0 || answer.Result.CNIVersion != types100.ImplementedSpecVersion {
		n.Errorf("result %s", r.Body)
	}
	nodetest.Equal(n, "Content-Type", r.Header.Get("Content-Type"), "application/json")
}

// TestDaemonServesTheShimOfMultus: the shim of Multus sends its whole
// environment, the container's keys even if they are empty, and no version. It
// gets answers it can read: a result in JSON, an empty body, or an error
// object. Plugins get nothing of its environment.
func TestDaemonServesTheShimOfMultus(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{})
	p := n.pod(n.thick("1.0.0", n.Fake("a")))
	send := func(command string) reply {
		t.Helper()
		env := object{
			"CNI_COMMAND": command, "CNI_CONTAINERID": p.ID, "CNI_NETNS": p.NetNS, "CNI_IFNAME": p.IfName, "CNI_PATH": n.Bin,
			"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=8f0c;K8S_POD_UID=",
			"HOME":     "/root", "INVOCATION_ID": "0a1b", "NOTIFY_SOCKET": "/run/systemd/notify", "PATH": "/none", "LD_PRELOAD": "/none.so",
		}
		if command == "GC" || command == "STATUS" {
			env["CNI_CONTAINERID"], env["CNI_NETNS"], env["CNI_IFNAME"], env["CNI_ARGS"] = "", "", "", ""
		}
		conf, err := json.Marshal(n.with(p.Conf, object{"cni.dev/valid-attachments": []object{{"containerID": p.ID, "ifname": p.IfName}}}))
		nodetest.OK(t, err)
		body, err := json.Marshal(object{"env": env, "config": conf})
		nodetest.OK(t, err)
		return n.post(wire.PathCNI, body)
	}
	// Its readiness request has the body "null".
	for _, path := range []string{wire.PathReady, wire.PathHealth} {
		nodetest.Equal(t, path, n.post(path, []byte("null")).Status, http.StatusOK)
	}
	n.isResult(send("ADD"))
	for _, command := range []string{"CHECK", "STATUS", "GC", "DEL", "DEL"} {
		send(command).done(t)
	}
	n.noTrace()
	for _, c := range n.Calls() {
		if c.Command == "ADD" && !strings.Contains(c.Args, "K8S_POD_NAME=web-0") {
			t.Errorf("CNI_ARGS %q", c.Args)
		}
	}
	p.Conf = n.thick("1.0.0", n.Fake("a", "ADD", "fail"))
	send("ADD").says(t, http.StatusInternalServerError, 111, "no free device")
	n.noTrace()
}

// TestDaemonAttachesOneMoreNetwork: the daemon attaches one more network to a
// running container. It lists that network with the others, CHECK and GC
// include it, and the DEL of the sandbox or its own detaches it.
func TestDaemonAttachesOneMoreNetwork(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{keys: object{"binDir": n.Bin}})
	p, other := n.pod(n.thick("1.1.0", n.bridge(1), n.Fake("a"))), n.pod(n.thick("1.1.0", n.Fake("other")))
	n.ok("ADD", p)
	n.ok("ADD", other)
	request := func(command, ifname string, conf object) reply {
		t.Helper()
		more := *p
		more.Conf, more.IfName = conf, ifname
		return n.post(wire.PathAttach, n.request(command, &more, object{"interfaceAttributes": object{"mac": "02:00:00:00:77:01"}}))
	}
	green := n.with(n.bridge(5), object{"name": n.Numbered("green"), "cniVersion": "1.0.0", "capabilities": object{"mac": true}})
	fakes := n.with(n.Fake("h"), object{"name": "fakes", "cniVersion": "1.1.0", "capabilities": object{"mac": true}})
	n.isResult(request("ADD", "more0", green))
	n.isResult(request("ADD", "more1", fakes))
	request("ADD", "more1", fakes).says(t, http.StatusInternalServerError, 7, "more1")
	nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "more0"})
	nodetest.Equal(t, "MAC", n.find(p, "more0").MAC, "02:00:00:00:77:01")
	nodetest.Equal(t, "listed", n.attachments(p), []string{"eth0 added", "net1 added", "more0 added", "more1 added"})
	nodetest.Equal(t, "listed", n.attachments(other), []string{"eth0 added"})
	request("CHECK", "more0", fakes).done(t)
	request("CHECK", "more1", fakes).done(t)
	n.ok("CHECK", p)
	n.ok("GC", p, valid(p, other))
	nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "more0"})

	for range 2 {
		request("DEL", "more1", fakes).done(t)
	}
	nodetest.Equal(t, "listed", n.attachments(p), []string{"eth0 added", "net1 added", "more0 added"})
	n.isResult(request("ADD", "more1", fakes))
	n.ok("DEL", p, withoutNetNS)
	nodetest.Equal(t, "interfaces", n.interfaces(p), nil)
	nodetest.Equal(t, "listed", n.attachments(p), nil)
	n.ok("DEL", other)
	n.noTrace()
}

// attachments lists p's attachments and their states, as the daemon reports
// them.
func (n *node) attachments(p *pod) (list []string) {
	n.Helper()
	r, err := n.ask(http.MethodGet, wire.PathAttach+"?container="+p.ID, nil)
	nodetest.OK(n, err)
	var all []struct{ ContainerID, IfName, State string }
	nodetest.OK(n, json.Unmarshal(r.Body, &all))
	for _, a := range all {
		nodetest.Equal(n, "container", a.ContainerID, p.ID)
		list = append(list, a.IfName+" "+a.State)
	}
	return list
}

// TestMultusClientAttachesAndDetaches: real plugins attach and detach what
// Multus's own client, multus-dynamic-networks-controller, requests. Its
// CNI_ARGS name the pod and lack IgnoreUnknown.
func TestMultusClientAttachesAndDetaches(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{keys: object{"binDir": n.Bin}})
	p := n.pod(n.thick("1.1.0", n.bridge(1)))
	n.ok("ADD", p)
	// A network definition as Kubernetes stores it, with white space.
	definition := fmt.Sprintf(`{
		"cniVersion": "1.0.0", "name": %q, "type": "bridge", "bridge": %q, "capabilities": {"mac": true},
		"ipam": {"type": "host-local", "subnet": "%s.0/24"}
	}`, n.Numbered("green"), n.Numbered("br5-"), n.Net(5))
	ask := func(command, attributes string) reply {
		t.Helper()
		// The client sends a struct: its keys are not sorted.
		return n.post(wire.PathAttach, fmt.Appendf(nil, `{"env":{"CNI_ARGS":"K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s;K8S_POD_UID=4f8c","CNI_COMMAND":%q,`+
			`"CNI_CONTAINERID":%q,"CNI_IFNAME":"net1","CNI_NETNS":%q},"config":%q%s}`,
			p.ID, command, p.ID, p.NetNS, base64.StdEncoding.EncodeToString([]byte(definition)), attributes))
	}
	for _, attributes := range []string{``, `,"interfaceAttributes":{"mac":"02:00:00:00:77:01","cni-args":null}`} {
		n.isResult(ask("ADD", attributes))
		nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "net1"})
		n.ok("CHECK", p)
		ask("DEL", attributes).done(t)
		nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0"})
		nodetest.Equal(t, "addresses", len(n.leases()), 1)
	}
	// A request that cannot be fulfilled is refused before a plugin runs.
	ask("ADD", `,"interfaceAttributes":{"ips":["10.9.1.7/24"],"cni-args":null}`).says(t, http.StatusInternalServerError, 7, `"ips"`, n.Numbered("green"))

	n.isResult(ask("ADD", ``))
	n.ok("DEL", p)
	nodetest.Equal(t, "interfaces", n.interfaces(p), nil)
	n.noTrace()
}

// TestErrorsPassThroughDaemonAndShim: for every command, a plugin's error
// reaches the runtime through daemon and shim as it does through multinet
// alone, with the same code and text and without any of the configuration.
func TestErrorsPassThroughDaemonAndShim(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		t.Run(command, func(t *testing.T) {
			n := newNode(t)
			d := n.daemon(daemonConf{keys: object{"logLevel": "debug"}})
			for _, code := range []uint{4, 7, 11, 50, 107, 999} {
				failing := func() object {
					return n.with(n.Fake("a", command, "fail"), object{"code": code, "password": secret})
				}
				pods := []*pod{n.pod(n.multinet("1.1.0", failing())), n.pod(n.thick("1.1.0", failing()))}
				var said [2]types.Error
				for i, p := range pods {
					if command != "ADD" {
						p.Result = n.call("ADD", p).Stdout
					}
					a := n.call(command, p, valid(pods...))
					if a.Err == nil {
						t.Fatalf("%s of %v succeeded although its plugin fails: %s", command, p.Conf["type"], a.Stdout)
					}
					if strings.Contains(string(a.Stdout)+a.Stderr, secret) {
						t.Errorf("the secret was printed: %s %s", a.Stdout, a.Stderr)
					}
					said[i] = *a.Err
					said[i].Msg = strings.ReplaceAll(a.Err.Msg, p.ID, "C")
				}
				nodetest.Equal(t, fmt.Sprintf("error with code %d", code), said[1], said[0])
				if command == "ADD" || command == "DEL" {
					nodetest.Equal(t, "code", said[1].Code, code)
				}
				n.Cure()
				for _, p := range pods {
					n.ok("DEL", p)
				}
				n.Sicken()
			}
			if strings.Contains(d.Log(), secret) {
				t.Errorf("the secret is in the log:\n%s", d.Log())
			}
			n.noTrace()
		})
	}
}

// TestDaemonServesANewerShim: a shim of a later version sends keys that the daemon does
// not know.
func TestDaemonServesANewerShim(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{})
	p := n.pod(n.thick("1.1.0", n.Fake("a")))
	more := object{"apiVersion": 2, "priority": "high", "fds": []int{3}, "interfaceAttributes": object{"ips": nil, "vf": 7}}
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		r := n.post(wire.PathCNI, n.request(command, p, more))
		if command == "ADD" {
			n.isResult(r)
		} else if r.Status != http.StatusOK || len(r.Body) > 0 {
			t.Errorf("%s: status %d: %s", command, r.Status, r.Body)
		}
	}
	n.noTrace()
}

// TestShimPrintsResultsInEveryVersion: the shim prints the same result as
// multinet alone, in every version of the protocol.
func TestShimPrintsResultsInEveryVersion(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{})
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		p := n.pod(nil)
		delegate := n.with(n.Fake("a"), object{"name": "a", "cniVersion": "1.0.0"})
		var results [2]object
		for i, conf := range []object{n.multinet(version, delegate), n.thick(version, maps.Clone(delegate))} {
			p.Conf = conf
			n.ok("ADD", p)
			nodetest.OK(t, json.Unmarshal(p.Result, &results[i]))
			if results[i]["cniVersion"] != version || !strings.Contains(string(p.Result), "192.0.2.2/24") {
				t.Errorf("version %s: %s", version, p.Result)
			}
			if version < "0.3.1" {
				p.Result = nil // no CHECK, no prevResult
			}
			n.ok("DEL", p)
		}
		nodetest.Equal(t, "result of version "+version, results[1], results[0])
	}
	n.noTrace()
}

// TestDELWithoutTheDaemonLeavesNoRules: pods are deleted while the daemon is dead. The
// shims execute the DELs while the namespaces exist, so that bridge finds its ipMasq
// rules, and nothing is left for the next daemon.
func TestDELWithoutTheDaemonLeavesNoRules(t *testing.T) {
	n := newNode(t)
	n.needsRules()
	d := n.daemon(daemonConf{})
	// Only the daemon's file says where the records are.
	pods := n.newPods(3, func() object {
		return n.with(n.thick("1.1.0", n.ruled(1), n.ruled(2)), object{"cniDir": nil})
	})
	for _, p := range pods {
		n.ok("ADD", p)
	}
	if len(n.rules()) == 0 {
		t.Fatal("no rules to leave")
	}
	d.Kill()
	for _, p := range pods {
		n.ok("DEL", p)
	}
	nodetest.Equal(t, "queued", n.queued(), nil)
	for _, p := range pods {
		n.gone(p)
	}
	for range 2 { // the runtime repeats it
		n.allOK("DEL", pods)
	}
	n.daemon(daemonConf{})
	for _, p := range pods {
		n.ok("ADD", p)
		n.ok("DEL", p)
	}
	n.noTrace()
	n.gone(pods[0])
}

// TestDaemonRefusesOtherUsers: the daemon refuses another user who can open the
// socket.
func TestDaemonRefusesOtherUsers(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{})
	p := n.pod(n.thick("1.1.0", n.Fake("a")))
	// All directories and the socket are open to everyone, and so is the shim.
	for dir := n.File("d"); dir != "/run"; dir = filepath.Dir(dir) {
		nodetest.OK(t, os.Chmod(dir, 0o755))
	}
	nodetest.OK(t, os.Chmod(n.socket(), 0o666))
	shim := n.copyProgram("multinet-shim", "d")
	conf, err := json.Marshal(p.Conf)
	nodetest.OK(t, err)
	n.Begin = func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
		err := cmd.Start()
		if err != nil {
			t.Skipf("the user namespace has only one user: %v", err)
		}
		return err
	}
	for _, command := range []string{"ADD", "DEL"} {
		c := n.Exec(shim, n.Env(command, &p.Pod), conf)
		n.failed(n.Wait(c), 999, "user 65534 may not connect")
	}
	n.Begin = nil
	n.Trace()
	n.ok("ADD", p)
	n.ok("DEL", p)
	n.noTrace()
}

// A pod keeps the address of its claim when it moves between a node of multinet and one of
// multinetd, whether the old container ends before the new one starts or later, as in a live
// migration. The addresses of others come and go meanwhile. The network is in the pod's
// annotation, or attached to the running pod.
func TestClaimKeepsItsAddressInEveryMove(t *testing.T) {
	thin := newNode(t)
	thick := nodeOf(t)
	thick.daemon(daemonConf{})
	thin.Mkdir("addresses")
	network := func(n *node) object {
		return object{
			"cniVersion": "1.1.0", "name": "vm", "type": "ptp", "capabilities": object{"ipam-claim-reference": true},
			"ipam": object{"type": "claims", "dir": thin.File("addresses")},
		}
	}
	for _, n := range []*node{thin, thick} {
		n.network("vm", network(n))
	}

	// start starts a pod on a node with one more interface, and returns its address there.
	start := func(n *node, claim string, later bool) (*pod, string) {
		t.Helper()
		conf := n.multinet
		if n == thick {
			conf = n.thick
		}
		p := n.pod(conf("1.1.0", n.Fake("a")))
		p.Annotations = map[string]string{}
		attributes := object{}
		selection := `[{"name":"vm"}]`
		if claim != "" {
			attributes["ipam-claim-reference"] = claim
			selection = `[{"name":"vm","ipam-claim-reference":"` + claim + `"}]`
		}
		if !later {
			p.selects(selection)
		}
		n.ok("ADD", p)
		if later {
			more := *p
			more.IfName, more.Conf = "net1", network(n)
			if r := n.post(wire.PathAttach, n.request("ADD", &more, object{"interfaceAttributes": attributes})); r.Status != http.StatusOK {
				t.Fatalf("attach: %d %s", r.Status, r.Body)
			}
		}
		n.ok("CHECK", p)
		addresses := n.find(p, "net1").Addresses
		if len(addresses) != 1 {
			t.Fatalf("net1 has the addresses %v", addresses)
		}
		return p, addresses[0].String()
	}

	_, other := start(thin, "", false) // has the first address
	old, want := start(thin, "web", false)
	if other == want {
		t.Fatal("two pods have the address", want)
	}
	from := thin
	for i := range 30 { // each way to move, with each that follows
		to := thick
		if from == thick {
			to = thin
		}
		stop := func() {
			from.ok("DEL", old)
			nodetest.Equal(t, "interfaces of the old container", from.interfaces(old), []string(nil))
		}
		migrates := i%2 == 0 // the new container starts while the old one runs
		if !migrates {
			stop()
		}
		if i%10 == 0 {
			start(to, "", false) // takes the address that is free
		}
		p, got := start(to, "web", to == thick && i%3 == 0)
		if got != want {
			t.Fatalf("move %d: address %s, want %s", i, got, want)
		}
		if migrates {
			stop()
		}
		to.ok("CHECK", p)
		old, from = p, to
	}
}
