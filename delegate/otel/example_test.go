package otel_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/otel"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A thin plugin that traces. Its main takes the process of plugin.OfProcess and a provider with an
// exporter, and shuts the provider down before it exits.
func Example() {
	dir, err := os.MkdirTemp("", "otel")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p := plugin.Plugin{
		StateDir: dir + "/state",
		Networks: func(ctx context.Context, c *plugin.Call) ([]netconf.Network, error) {
			annotations, err := c.PodAnnotations(otel.PodAnnotation)
			if err != nil {
				return nil, err
			}
			otel.Pod(ctx, nad.PodOf(c.Args), annotations)
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			return conf.Delegates, err
		},
	}
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	process := plugin.System{
		Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}},
		Env: []string{
			"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/run/netns/c1", "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		},
		Stdin:          strings.NewReader(`{"cniVersion":"1.1.0","name":"pods","type":"mine","delegates":[{"type":"bridge"}]}`),
		Stdout:         new(bytes.Buffer),
		InterfaceNames: func(string) ([]string, error) { return nil, nil },
	}
	fmt.Println(p.Run(context.Background(), otel.Traced(process, provider)))
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.SpanContext.TraceID(), span.Name)
	}
	// Output:
	// <nil>
	// 0af7651916cd43dd8448eb211c80319c lock
	// 0af7651916cd43dd8448eb211c80319c record
	// 0af7651916cd43dd8448eb211c80319c ADD bridge
	// 0af7651916cd43dd8448eb211c80319c record
	// 0af7651916cd43dd8448eb211c80319c CNI ADD
}
