package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

// claimCases are updates of resourceclaims/status, as a driver makes them. The parameters in
// the allocation are no canonical JSON.
func claimCases() []Case {
	const allocated = `"allocation":{"devices":{"results":[{"request":"r","driver":"d.example","pool":"p","device":"net"}],` +
		`"config":[{"source":"FromClaim","opaque":{"driver":"d.example","parameters":{"b":1.0,"a":1e3}}}]}}`
	var cases []Case
	for _, row := range []struct {
		name, version, status string // VERSION is that of the claim
		want                  answer
	}{
		{"of an allocated device is taken", "VERSION", allocated + `,"devices":[{"driver":"d.example","pool":"p","device":"net","conditions":[]}]`, answer{code: 200}},
		{"without a version is taken", "", allocated, answer{code: 200}},
		{"of an old version conflicts", "1", allocated, conflict()},
		{"of another device is invalid", "VERSION", allocated + `,"devices":[{"driver":"d.example","pool":"p","device":"other","conditions":[]}]`, answer{422, metav1.StatusReasonInvalid, "status.devices[0]"}},
		{"with another allocation is invalid", "VERSION", strings.Replace(allocated, "net", "other", 1), answer{422, metav1.StatusReasonInvalid, "status.allocation"}},
		{"with data of 10 KiB and a byte is invalid", "VERSION", allocated + `,"devices":[{"driver":"d.example","pool":"p","device":"net","conditions":[],"data":{"a":"` + strings.Repeat("x", 10<<10-7) + `"}}]`, answer{422, metav1.StatusReasonInvalid, "status.devices[0].data"}},
		{"with 17 addresses is invalid", "VERSION", allocated + `,"devices":[{"driver":"d.example","pool":"p","device":"net","conditions":[],"networkData":{"ips":[` + addresses(17) + `]}}]`, answer{422, metav1.StatusReasonInvalid, "status.devices[0].networkData.ips"}},
	} {
		cases = append(cases, Case{"an update of resourceclaims/status " + row.name, func(ctx context.Context, c *client) error {
			update := func(version, status string) (response, error) {
				return c.do(ctx, "PUT", claims+"/"+c.name+"/status", "", fmt.Sprintf(
					`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q,"namespace":"default","resourceVersion":%q},"status":{%s}}`, c.name, version, status))
			}
			made, err := c.create(ctx, claims, fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q},
				"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}}`, c.name))
			if err != nil {
				return err
			}
			if err := (answer{code: 200}).of(update(made.Metadata.ResourceVersion, allocated)); err != nil {
				return err
			}
			before, err := c.ok(ctx, "GET", claims+"/"+c.name, "", "")
			if err != nil {
				return err
			}
			if err := row.want.of(update(strings.Replace(row.version, "VERSION", before.Metadata.ResourceVersion, 1), row.status)); err != nil {
				return err
			}
			after, err := c.ok(ctx, "GET", claims+"/"+c.name, "", "")
			if err != nil {
				return err
			}
			got, want := allocationOf(after.Status), allocationOf(before.Status)
			return same("the allocation", got, want)
		}})
	}
	return cases
}

// addresses returns the JSON of n addresses, without brackets.
func addresses(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"192.0.2.%d/24"`, i+1))
	}
	return strings.Join(all, ",")
}

// allocationOf returns the allocation in the status of a claim, as it is written.
func allocationOf(status json.RawMessage) string {
	var s struct {
		Allocation json.RawMessage `json:"allocation"`
	}
	_ = json.Unmarshal(status, &s) // the caller compares what there is
	return string(s.Allocation)
}
