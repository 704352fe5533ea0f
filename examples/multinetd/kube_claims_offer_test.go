package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
)

func (tn *town) claimStore() dra.Store { return dra.Store{Dir: tn.dir + "/state.claims"} }

// kubetestFault fails a verb of all resources.
func kubetestFault(verb string) kubetest.Fault { return kubetest.Fault{Verb: verb, Status: 500} }

// offered are the devices in the ResourceSlices of the node, such as
// "storage{master=eth1 plugin=macvlan}", and "storage!{}" for one that only one claim can have.
func (tn *town) offered() string {
	var all []string
	for _, s := range tn.api.ResourceSlices() {
		if s.Spec.Driver != driverName || s.Spec.NodeName == nil || *s.Spec.NodeName != "n1" {
			return fmt.Sprintf("a slice of %+v", s.Spec)
		}
		for _, d := range s.Spec.Devices {
			var attributes []string
			for key, a := range d.Attributes {
				attributes = append(attributes, fmt.Sprintf("%s=%s", key, *a.StringValue))
			}
			slices.Sort(attributes)
			mark := "!"
			if d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations {
				mark = ""
			}
			all = append(all, fmt.Sprintf("%s%s{%s}", d.Name, mark, strings.Join(attributes, " ")))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// The node offers the networks that pods can be attached to now: the plugins have been asked,
// and the definition is there.
func TestNodeOffersTheNetworksThatAreReady(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"confDir":"$DIR/nets"`+claimKeys+`,"networks":[
		{"network":"ns/blue","attributes":{"speed":"fast"}},
		{"network":"ns/broken"},
		{"device":"later","network":"ns/later","exclusive":true},
		{"network":"ns/full"},
		{"network":"file"},
		{"network":"missing"}]}`).withKubelet(t)
	nodetest.OK(t, os.Mkdir(tn.dir+"/nets", 0o700))
	nodetest.OK(t, os.WriteFile(tn.dir+"/nets/file.conf", []byte(`{"cniVersion":"1.1.0","name":"file","type":"bridge"}`), 0o600))
	tn.fake.Plugins["full"] = delegatetest.FailOn("STATUS", 50, "no cable", delegatetest.Result(nil))
	tn.api.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.1.0","type":"full"}`})
	tn.start(t)
	const now = "blue{plugin=macvlan speed=fast} file{plugin=bridge}"
	tn.until(t, "what is ready is published", func() bool { return tn.offered() == now })
	if !slices.ContainsFunc(tn.fake.Calls(), func(c delegatetest.Call) bool { return c.Command == "STATUS" && c.Plugin == "full" }) {
		t.Errorf("STATUS was not asked for: %q", tn.fake.Trace())
	}
	tn.api.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "later", Config: `{"cniVersion":"1.1.0","type":"macvlan","master":"eth1"}`})
	tn.until(t, "the definition that is new is published", func() bool {
		return tn.offered() == now+" later!{master=eth1 plugin=macvlan}"
	})
	tn.until(t, "the metrics say so", func() bool {
		_, text := tn.get(t, "/metrics")
		got := series(t, text)
		return got[`multinetd_claim_devices{state="published"}`] == 3 && got[`multinetd_claim_devices{state="withdrawn"}`] == 3
	})
	for _, says := range []string{`"device":"full","error":"STATUS network`, "no cable", `"device":"missing"`, `"device":"broken"`} {
		if !strings.Contains(tn.logged.String(), says) {
			t.Errorf("the log does not have %s: %s", says, tn.logged)
		}
	}
	// A daemon that ends withdraws nothing: the next one is there soon.
	nodetest.OK(t, tn.stop())
	if got := tn.offered(); !strings.HasPrefix(got, now) {
		t.Errorf("offered after the end: %s", got)
	}
}

func TestMetricsSayHowClaimsAreDoing(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	prepare(t, k, tn.claim(t, "storage", a, parameters("net7", "blue")))
	heal := tn.api.Break(kubetest.Fault{Resource: "resourceclaims/status", Status: 403})
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	metrics := func(name string) float64 {
		_, text := tn.get(t, "/metrics")
		return series(t, text)["multinetd_"+name]
	}
	tn.until(t, "the refusal is counted", func() bool { return metrics(`claim_status_writes_total{outcome="refused"}`) > 0 })
	if served, prepared, pending := metrics("claims_served"), metrics("claims_prepared"), metrics("claim_status_pending"); served != 1 || prepared != 1 || pending != 1 {
		t.Errorf("served %v, prepared %v, pending %v", served, prepared, pending)
	}
	heal()
	tn.until(t, "the status is counted", func() bool {
		return metrics(`claim_status_writes_total{outcome="written"}`) == 1 && metrics("claim_status_pending") == 0
	})
}

// The kubelet hears at once what the ADD would refuse.
func TestClaimsAreCheckedByTheConfigurationOfTheDaemon(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"namespaceIsolation":true,"allowedTypes":{"nad":["macvlan"]}`+claimKeys+`}`).withKubelet(t).start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	for name, tt := range map[string]struct{ parameters, says string }{
		"allowed":           {parameters("net7", "blue"), ""},
		"another-namespace": {parameters("net8", "other/red"), "other/red"},
		"another-type":      {`{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","config":{"cniVersion":"1.0.0","name":"n","type":"bridge"}}`, "bridge"},
		"wrong-parameters":  {`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network"}`, "definition"},
	} {
		c := tn.claim(t, name, a, tt.parameters)
		all, err := k.Prepare(t.Context(), c)
		nodetest.OK(t, err)
		err = all[string(c.UID)].Err
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("claim %s: %v, want %q", name, err, tt.says)
		}
	}
}
