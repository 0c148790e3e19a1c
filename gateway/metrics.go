package gateway

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sandgate/sandbox"
	"sandgate/store"
)

// counters are what a gateway counts for its operator. Their labels are of this
// program: nothing that a user can choose is one, as each value of a label costs
// memory for ever and is shown to people who need not know names. The zero value
// counts from nothing.
type counters struct {
	connections tally // by nothing
	logins      tally // by outcome
	channels    tally // that are open, by kind
	opened      tally // channels, by kind
	requests    tally // to run something, by kind
	problems    tally // told to users, by kind
	refusals    tally // for a quota, by measure
	steps       tally // of the agent
	tokens      tally // of models, by kind
	cost        tally // of models, in millionths of a US dollar
	used        tally // bytes in and out, sessions, jobs
}

// A tally counts by a label. The zero value is empty.
type tally struct {
	mu sync.Mutex
	n  map[string]int64
}

func (t *tally) add(label string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = make(map[string]int64)
	}
	t.n[label] += n
}

func (t *tally) all() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}

// outcome is how a connection came to no login, as a label.
func outcome(err error) string {
	for label, is := range map[string]error{
		"shut_out": errPenalised, "crowded": errCrowded, "unknown_key": errNoKey, "no_signature": errUnsigned,
		"no_ssh": errNoSSH, "nothing_tried": errNothing, "too_late": errLoginGrace, "draining": errLeaving,
	} {
		if errors.Is(err, is) {
			return label
		}
	}
	return "broken_off"
}

// words are kinds of problems as labels.
var words = map[kind]string{
	failed: "failed", usage: "usage", notFound: "not_found", denied: "denied", quota: "quota", conflict: "conflict",
}

// problem counts what a user is told.
func (c *counters) problem(err error, p *problem) {
	c.problems.add(words[p.kind], 1)
	if q, ok := errors.AsType[*sandbox.QuotaError](err); ok {
		c.refusals.add(string(q.Measure), 1)
	}
}

// spent counts a response of a model.
func (c *counters) spent(u store.Usage) {
	c.steps.add("", 1)
	c.tokens.add("input", u.TokensIn)
	c.tokens.add("cache_read", u.TokensCacheRead)
	c.tokens.add("cache_write", u.TokensCacheWrite)
	c.tokens.add("output", u.TokensOut)
	c.cost.add("", u.CostMicros)
}

// use counts what sandboxes were used for.
func (c *counters) use(u store.Usage) {
	c.used.add("in", u.BytesIn)
	c.used.add("out", u.BytesOut)
	c.used.add("sessions", u.Sessions)
	c.used.add("jobs", u.Jobs)
}

// newStarts returns what measures how long sandboxes take to start.
func newStarts() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sandgate_sandbox_start_seconds",
		Help:    "How long it took to start a sandbox until its guest answered, or failed to.",
		Buckets: []float64{.05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
	}, []string{"driver", "outcome"})
}

// started is what the manager of the sandboxes calls.
func (g *Gateway) started(driver string, took time.Duration, err error) {
	how := "ok"
	if err != nil {
		how = "failed"
	}
	g.starts.WithLabelValues(driver, how).Observe(took.Seconds())
}

// Describe describes nothing: which metrics there are is seen when they are collected.
func (g *Gateway) Describe(chan<- *prometheus.Desc) {}

// scrapeTimeout bounds what is looked up for one answer.
const scrapeTimeout = 5 * time.Second

// Collect sends all that the gateway counts.
func (g *Gateway) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	send := func(kind prometheus.ValueType, name, help, label string, values map[string]int64, unit float64) {
		var labels []string
		if label != "" {
			labels = []string{label}
		}
		desc := prometheus.NewDesc("sandgate_"+name, help, labels, nil)
		if label == "" && len(values) == 0 {
			values = map[string]int64{"": 0}
		}
		for value, n := range values {
			var of []string
			if label != "" {
				of = []string{value}
			}
			to <- prometheus.MustNewConstMetric(desc, kind, float64(n)*unit, of...)
		}
	}
	one := func(n int64) map[string]int64 { return map[string]int64{"": n} }
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	c := &g.counters
	open, inside := g.arrivals.count()
	send(counter, "connections_total", "Connections accepted.", "", c.connections.all(), 1)
	send(gauge, "connections", "Connections that are open, by whether somebody has logged in.", "login",
		map[string]int64{"done": int64(inside), "pending": int64(open - inside)}, 1)
	send(counter, "logins_total", "How connections came to a login, or to none.", "outcome", c.logins.all(), 1)
	given, shut := g.admission.penalised()
	send(counter, "penalties_total", "Penalties of addresses, for connections without a login.", "", one(given), 1)
	send(gauge, "addresses_shut_out", "Addresses that are shut out after failed logins.", "", one(int64(shut)), 1)
	send(gauge, "channels_open", "Channels that are open.", "kind", c.channels.all(), 1)
	send(counter, "channels_total", "Channels that were opened.", "kind", c.opened.all(), 1)
	send(counter, "execs_total", "Commands, shells and subsystems that clients asked for.", "kind", c.requests.all(), 1)
	send(counter, "errors_total", "Problems that users were told, by kind.", "kind", c.problems.all(), 1)
	send(counter, "quota_refusals_total", "What was refused for a quota.", "quota", c.refusals.all(), 1)
	used := c.used.all()
	send(counter, "bytes_total", "Bytes of sessions in sandboxes, from (in) and to (out) clients; some seconds late.", "direction",
		map[string]int64{"in": used["in"], "out": used["out"]}, 1)
	send(counter, "sessions_total", "Sessions in sandboxes; some seconds late.", "", one(used["sessions"]), 1)
	send(counter, "jobs_total", "Commands started in sandboxes; some seconds late.", "", one(used["jobs"]), 1)
	send(counter, "agent_steps_total", "Answers of models to the agent.", "", c.steps.all(), 1)
	send(counter, "agent_tokens_total", "Tokens that models used.", "kind", c.tokens.all(), 1)
	send(counter, "agent_cost_dollars_total", "What models cost, where their price is known.", "", c.cost.all(), 1e-6)
	g.starts.Collect(to)
	g.collectSandboxes(ctx, to)
	g.collectStore(to)
}

// collectSandboxes sends how many sandboxes there are.
func (g *Gateway) collectSandboxes(ctx context.Context, to chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("sandgate_sandboxes", "Sandboxes that there are.", []string{"driver", "state"}, nil)
	rows, err := g.db.Sandboxes(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(desc, err)
		return
	}
	infos, err := g.sandboxes.Infos(ctx, rows)
	if err != nil {
		to <- prometheus.NewInvalidMetric(desc, err)
		return
	}
	type key struct{ driver, state string }
	n := make(map[key]int)
	for _, r := range rows {
		n[key{r.Driver, string(infos[sandbox.ID(r.ID)].State)}]++
	}
	for k, n := range n {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), k.driver, k.state)
	}
}

// collectStore sends how long the database takes.
func (g *Gateway) collectStore(to chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("sandgate_store_seconds", "How long the database took to answer, waiting for its turn included.", []string{"operation"}, nil)
	reads, writes := g.db.Latencies()
	for operation, l := range map[string]store.Latency{"read": reads, "write": writes} {
		to <- prometheus.MustNewConstHistogram(desc, l.Count, l.Sum.Seconds(), l.Buckets, operation)
	}
}
