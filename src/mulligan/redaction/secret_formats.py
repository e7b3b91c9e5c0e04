"""Detection of secrets by their own format: provider prefixes, private keys, and a few formats without a prefix."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from mulligan.redaction import secret_hints as hints
from mulligan.redaction.regex import LazyRegex

# Provider, prefixes of its secrets, and pattern of the remainder. Lengths are as issued, with a margin where they have
# varied: a pattern that is too wide hides identifiers, which are evidence.
_PREFIXED = r"""
openai        sk-proj- sk-svcacct- sk-admin-                    [\w-]{20,250}
anthropic     sk-ant-                                           [a-z]{3,6}\d\d-[\w-]{20,250}
api_key       sk-                                               (?!ant-)(?:or-v1-|lf-|kimi-|oat\d\d-)?[\w-]{20,200}
langfuse      pk-lf-                                            [\w-]{30,40}
github        ghp_ gho_ ghu_ ghs_ ghr_                          [A-Za-z0-9]{36,251}
github        github_pat_                                       \w{60,100}
gitlab        glpat- gldt- glrt- glptt- glft- glsoat-           [\w.-]{20,70}
gitlab        glcbt- glimt- glagent- gloas- glffct-             [\w.-]{20,70}
gitlab        GR1348941                                         [\w-]{20}(?![\w-])
aws           AKIA ASIA ABIA ACCA A3T                           [A-Z0-9]{16}(?![A-Za-z0-9_/+])
aws           amzn.mws.                                         [0-9a-f-]{36}
aws           ABSK                                              [A-Za-z0-9+/]{100,270}={0,2}
aws           bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t      [\w+/=-]{0,2000}
google        AIza                                              [\w-]{35}(?![\w-])
google        GOCSPX-                                           [\w-]{24,40}
google        ya29.                                             [\w-]{20,500}
slack         xoxb- xoxp- xoxe- xoxa- xoxr- xoxs- (?:\d-)?\d{8,14}(?:-\d{6,14}){,3}-(?=\d*[A-Za-z])[A-Za-z0-9]{10,64}
slack         xoxe.xoxb- xoxe.xoxp- xoxe- xoxa- xoxr-           \d-[A-Za-z0-9]{140,180}
slack         xoxc- xoxd-                                       [\w%/+-]{30,300}
slack         xapp-                                             \d-[A-Z0-9]{6,14}-\d{8,14}-[a-z0-9]{30,80}
stripe        sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_    [A-Za-z0-9]{10,255}
stripe        whsec_                                            [A-Za-z0-9+/=]{24,80}
jwt           eyJ                                               [\w-]{8,4000}(?:\.[\w-]{0,4000}){2,4}
jwt           eyJ                                               [\w-]{8,4000}\.eyJ[\w-]{4,4000}
jwt           ey                                                [A-Za-z0-9]{14,4000}\.ey[\w-]{14,4000}
jwt           ZXlK                                              [A-Za-z0-9+/]{60,4000}={0,2}
grafana       eyJrIjoi                                          [A-Za-z0-9+/]{60,400}={0,2}
grafana       glc_                                              [A-Za-z0-9+/]{32,400}={0,2}
grafana       glsa_                                             [A-Za-z0-9]{32}_[A-Fa-f0-9]{8}
huggingface   hf_ api_org_                                      [A-Za-z0-9]{34}(?!\w)
npm           npm_                                              [A-Za-z0-9]{36}(?!\w)
pypi          pypi-AgE pypi-                                    [\w-]{50,1000}
rubygems      rubygems_                                         [a-f0-9]{48}
docker        dckr_pat_ dckr_oat_                               [\w-]{20,60}
sendgrid      SG.                                               [\w=-]{16,32}\.[\w=-]{32,64}
brevo         xkeysib- xsmtpsib-                                [a-f0-9]{64}-[A-Za-z0-9]{16}
mailgun       key- pubkey-                                      [a-f0-9]{32}(?![\w-])
twilio        SK                                                [0-9a-fA-F]{32}(?!\w)
square        sq0atp- sq0csp- sq0idp-                           [\w-]{22,50}
square        EAAA                                              [\w-]{58,62}(?![\w-])
meta          EAA                                               [A-Za-z0-9]{80,400}
shopify       shpat_ shpca_ shppa_ shpss_ shptka_               [a-fA-F0-9]{32}
digitalocean  dop_v1_ doo_v1_ dor_v1_                           [a-f0-9]{64}
doppler       dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.    [\w.-]{30,60}
dropbox       sl.                                               [\w-]{100,1500}
databricks    dapi                                              [a-h0-9]{32}(?:-\d)?(?!\w)
heroku        HRKU-                                             [\w-]{30,70}
hubspot       pat-na1- pat-na2- pat-eu1-                        [0-9a-fA-F-]{36}
atlassian     ATATT3 ATCTT3 ATSTT3                              [\w=-]{60,300}
atlassian     ATBB                                              [\w=-]{28,80}
linear        lin_api_ lin_oauth_                               [A-Za-z0-9]{32,64}
notion        ntn_                                              \d{8,12}[A-Za-z0-9]{34,40}(?!\w)
notion        secret_                                           [A-Za-z0-9]{43}(?!\w)
figma         figd_ figo_ figu_                                 [\w-]{36,60}
postman       PMAK-                                             [a-f0-9]{24}-[a-f0-9]{34}
newrelic      NRAK- NRJS- NRII- NRRA- NRAA-                     [\w-]{19,42}
sentry        sntrys_ sntryu_ sntrya_                           [\w+/=-]{40,400}
vault         hvs. hvb. hvr.                                    [\w-]{24,300}
vault         s.                                                [A-Za-z0-9]{24}(?![\w.])
pulumi        pul-                                              [a-f0-9]{40}(?!\w)
planetscale   pscale_tkn_ pscale_pw_ pscale_oauth_              [\w.=-]{32,64}
prefect       pnu_ pnb_                                         [A-Za-z0-9]{36}(?!\w)
infracost     ico-                                              [A-Za-z0-9]{32}(?!\w)
tailscale     tskey-                                            [\w-]{16,100}
cloudflare    v1.0-                                             [a-f0-9]{24}-[a-f0-9]{140,150}
contentful    CFPAT-                                            [\w-]{43}
airtable      pat                                               [A-Za-z0-9]{14}\.[a-f0-9]{64}
typeform      tfp_                                              [\w.=-]{40,70}
alibaba       LTAI                                              [A-Za-z0-9]{12,24}(?!\w)
tencent       AKID                                              [A-Za-z0-9]{32}(?!\w)
yandex        AQVN                                              [\w-]{35,38}(?![\w-])
yandex        t1.                                               [A-Z0-9a-z_-]{8,300}={0,2}\.[A-Z0-9a-z_-]{80,90}={0,2}
yandex        YC                                                [\w-]{38}(?![\w-])
wallet        bc1                                               [a-z0-9]{39}(?:[a-z0-9]{20})?(?!\w)
age           AGE-SECRET-KEY-1                                  [A-Z0-9]{58}
adobe         p8e-                                              [A-Za-z0-9]{32}(?!\w)
clojars       CLOJARS_                                          [A-Za-z0-9]{60}
duffel        duffel_test_ duffel_live_                         [\w=-]{43}
dynatrace     dt0c01. dt0s01. dt0s02.                           [A-Z0-9]{8,24}\.[A-Z0-9]{64}
easypost      EZAK EZTK                                         [A-Za-z0-9]{54}(?!\w)
flutterwave   FLWSECK_TEST- FLWSECK- FLWPUBK_TEST- FLWPUBK-     [A-Za-z0-9-]{12,50}
fly           fo1_ fm1_ fm1a_ fm1r_ fm2_                        [\w+/=,-]{40,1000}
frameio       fio-u-                                            [\w=-]{64}
gocardless    live_ sandbox_                                    [\w=-]{40}(?![\w=-])
lob           live_ test_                                       (?:pub_)?[a-f0-9]{31,35}(?!\w)
harness       pat. sat.                                         [\w-]{22}\.[a-f0-9]{24}\.[A-Za-z0-9]{20}
jfrog         AKCp                                              [A-Za-z0-9]{69,73}
jfrog         cmVmd                                             [A-Za-z0-9]{59}(?!\w)
mapbox        sk.eyJ tk.eyJ                                     [\w-]{20,200}\.[\w-]{20,40}
nuget         oy2                                               [a-z0-9]{43}(?!\w)
octopus       API-                                              [A-Z0-9]{26}(?!\w)
onepassword   ops_eyJ                                           [A-Za-z0-9+/]{200,2000}={0,3}
onepassword   A3-                                               [A-Z0-9]{6}-[A-Z0-9-]{11,12}(?:-[A-Z0-9]{5}){3}
plaid         access-sandbox- access-development- access-production-  [0-9a-f-]{36}
readme        rdme_                                             [a-z0-9]{70}
scalingo      tk-us-                                            [\w-]{48}(?![\w-])
settlemint    sm_aat_ sm_pat_ sm_sat_                           [A-Za-z0-9]{16}(?!\w)
shippo        shippo_live_ shippo_test_                         [a-fA-F0-9]{40}
sonar         squ_ sqp_ sqa_                                    [\w-]{40}(?![\w-])
sourcegraph   sgp_local_ sgp_                                   (?:[a-fA-F0-9]{16}_)?[a-fA-F0-9]{40}(?!\w)
sourcegraph   slk_                                              [a-f0-9]{64}
openshift     sha256~                                           [\w-]{43}(?![\w-])
perplexity    pplx-                                             [A-Za-z0-9]{32,60}
groq          gsk_                                              [A-Za-z0-9]{40,60}
xai           xai-                                              [A-Za-z0-9]{60,100}
replicate     r8_                                               [A-Za-z0-9]{37,40}(?!\w)
nvidia        nvapi-                                            [\w-]{50,80}
tavily        tvly-                                             [\w-]{20,60}
pinecone      pcsk_                                             \w{50,90}
langsmith     lsv2_pt_ lsv2_sk_ ls__                            \w{32,60}
together      tgp_v1_                                           [\w-]{40,50}
jina          jina_                                             [\w-]{50,80}
fireworks     fw_                                               [A-Za-z0-9]{20,40}(?!\w)
cerebras      csk-                                              [a-z0-9]{40,60}
firecrawl     fc-                                               [a-f0-9]{32}(?!\w)
voyage        pa-                                               [\w-]{40,60}(?![\w-])
wandb         wandb_v1_                                         \w{40,120}
exa           sk_                                               [a-f0-9]{48}(?!\w)
supabase      sbp_ sb_secret_                                   [\w-]{30,60}
netlify       nfp_                                              [A-Za-z0-9]{36,40}
vercel        vcp_ vci_ vca_ vcr_ vck_                          [A-Za-z0-9]{24,64}
render        rnd_                                              [A-Za-z0-9]{28,40}
resend        re_                                               [A-Za-z0-9]{8}_[A-Za-z0-9]{20,30}
buildkite     bkua_ bkct_ bkaj_                                 [a-zA-Z0-9]{40,64}
circleci      CCIPAT_ CCIPRJ_                                   [\w]{40,80}
razorpay      rzp_live_ rzp_test_                               [A-Za-z0-9]{14,24}
onfido        api_live. api_sandbox. api_live_us.               [\w-]{11}\.[\w-]{32}
stackhawk     hawk.                                             [\w-]{20}\.[\w-]{20}
snyk          snyk_uat. snyk_sat.                               [\w.-]{30,200}
elevenlabs    xi_                                               [a-f0-9]{32,64}
posthog       phx_ phc_ phs_                                    [A-Za-z0-9]{40,60}
artifactory   cmVmdGtuOj                                        [A-Za-z0-9+/=]{40,120}
cohere        co-                                               [A-Za-z0-9]{40}(?!\w)
mergify       mka_                                              [\w-]{40,80}
beamer        b_                                                [a-z0-9=_-]{44}(?![\w=-])
definednet    dnkey-                                            [a-z0-9=_-]{26}-[a-z0-9=_-]{52}
authress      sc_ ext_ scauth_ authress_                [a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[\w-]{11,33}\.[\w+/=-]{30,120}
intra42       s-s4t2ud- s-s4t2af-                               [a-f0-9]{64}
clickhouse    4b1d                                              [A-Za-z0-9]{38}(?!\w)
cursor        crsr_ key_                                        [a-f0-9]{64}
linkedin      AQ                                                [\w-]{340,360}
stytch        secret-live- secret-test-                         [\w=-]{30,60}
adafruit      aio_                                              [A-Za-z0-9]{28}(?!\w)
apify         apify_api_                                        [A-Za-z0-9]{34,44}
aws           IQoJb3JpZ2lu FwoGZXIvYXdz FQoGZXIvYXdz            [\w+/=%-]{60,4000}
azure         ACDb                                              [\w+/]{70,90}={0,2}
baidu         ALTAK-                                            [\w-]{16,30}/[0-9a-f]{32,48}
brave         BSA                                               [\w-]{27,28}(?![\w-])
browserbase   bb_live_                                          [\w-]{20,60}
daytona       dtn_                                              [a-f0-9]{40,80}
digitalocean  DO00                                              [A-Z0-9]{16}(?!\w)
e2b           e2b_                                              [a-f0-9]{40}
intercom      dG9rO                                             [A-Za-z0-9+/]{50,90}={0,2}
ionic         ion_                                              [A-Za-z0-9]{42}(?!\w)
launchdarkly  sdk-                                              [0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{22}(?!\w)
mailersend    mlsn.                                             [a-f0-9]{64}
mandrill      md-                                               [\w-]{22}(?![\w-])
mem0          m0-                                               [A-Za-z0-9]{40}(?!\w)
mongodb       mdb_sa_sk_                                        [\w-]{40}
neon          napi_                                             [a-z0-9]{60,70}
netlify       nfc_ nfo_ nfu_                                    [A-Za-z0-9]{36,40}
paddle        pdl_live_apikey_ pdl_sdbx_apikey_                 [A-Za-z0-9]{26}_[\w]{22}_\w{3}
polar         polar_pat_ polar_oat_ polar_rst_                  [A-Za-z0-9_]{30,60}
portainer     ptr_                                              [\w+/=-]{20,60}
pubnub        sec-c-                                            [A-Za-z0-9-]{36,60}
runpod        rpa_                                              [A-Z0-9]{40,50}
scaleway      SCW                                               [A-Z0-9]{17}(?!\w)
slack         xwfp-                                             [\w-]{20,200}
trello        ATTA                                              [a-f0-9]{64}[A-F0-9]{8}
twitter       AAAAAAAAAAAAAAAAAAAAA                             (?=[\w%]*[a-z])(?=[\w%]*\d)[\w%]{60,140}
unkey         unkey_                                            [A-Za-z0-9]{20,40}
vercel        vercel_blob_rw_                                   \w{30,80}
wakatime      waka_                                             [0-9a-f-]{36}
zoho          1000.                                             [0-9a-f]{32}\.[0-9a-f]{32}
private_key   LS0tLS1CRUdJTiBQUklWQVRF LS0tLS1CRUdJTiBSU0EgUFJJ [A-Za-z0-9+/]{40,8000}={0,2}
private_key   LS0tLS1CRUdJTiBFQyBQUklW LS0tLS1CRUdJTiBPUEVOU1NI [A-Za-z0-9+/]{40,8000}={0,2}
private_key   LS0tLS1CRUdJTiBFTkNSWVBURUQg LS0tLS1CRUdJTiBEU0Eg [A-Za-z0-9+/]{40,8000}={0,2}
github        Z2hwX Z2hvX Z2hzX Z2l0aHViX3BhdF                  [A-Za-z0-9+/]{44,200}={0,2}
openai        c2stcHJvai c2stYW50L                              [A-Za-z0-9+/]{40,400}={0,2}
gitlab        Z2xwYXQt                                          [A-Za-z0-9+/]{26,100}={0,2}
slack         eG94Yi eG94cC                                     [A-Za-z0-9+/]{40,200}={0,2}
aws           QUtJQ                                             [A-Z][A-Za-z0-9+/]{20,21}={0,2}(?![\w+/])
"""

_LETTERS_AND_DIGITS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
# Secrets that follow a marker: the last two characters of the marker as lookup key, then kind, full marker, prefix of
# the secret, and pattern of the remainder.
_AFTER = {
    **{f"{digit}:": ("telegram", r"(?<!\d)\d{8,10}:", "AA", r"[\w-]{32,33}(?![\w-])") for digit in "0123456789"},
    **{f"{digit}|": ("meta", r"(?<!\d)\d{15,16}\|", "", r"[\w-]{27,40}(?![\w-])") for digit in "0123456789"},
    **{f"{c}!": ("salesforce", r"(?<!\w)00D\w{12}!", "", r"[\w.]{60,120}") for c in _LETTERS_AND_DIGITS},
    "h:": ("twitch", r"(?<!\w)oauth:", "", r"[a-z0-9]{30}(?!\w)"),
    "//": ("google", r"(?<![\w/])1//", "0", r"[\w-]{30,120}"),
    "y/": ("ifttt", r"(?<!\w)with/key/", "", r"[\w-]{20,60}"),
    "r+": ("endor", r"(?<!\w)endr\+", "", r"[\w-]{16,40}"),
}
_ESCAPED = {"\\": 1, "%": 2}
r"""Characters of a run that belong to an escape before it: "\nghp_..." inside JSON, "%3Dghp_..." inside a URL."""
_MARKS = frozenset(":|/+\\%!")
"""Characters before a run for which one of the two tables applies."""
# URLs that are secret as a whole.
_HOOKS = LazyRegex(
    r"hook(?:s\.(?:slack\.com/[a-z]{7,9}/[\w+/-]{20,120}|zapier\.com/hooks/catch/[\w/]{8,60})"
    r"|s/\d{15,21}/[\w-]{40,100}|\.office\.com/[\w@/-]{20,200}|/send\?key=[\w-]{36}|/[0-9a-f]{8}-[0-9a-f-]{27})",
    re.ASCII,
)

RUN_TABLE = bytes(97 if chr(c).isalnum() or chr(c) in "_.~-" else 32 for c in range(128)) + b" " * 128
"""Table for bytes.translate: `a` for characters of a run, spaces for the rest. A long run is then one substring
search."""
LONG_RUN = b"a" * 16
"""Every format above starts a run of at least this length, or is found by its marker in a text with one."""
_PREFIX_KEY_CHARS = 2
"""Characters of the lookup key. The shortest prefix has as many."""

_SAMPLED = hints.word_set("google anthropic databricks")
"""Providers whose documentation contains sequential sample keys. For all others the format alone decides."""


@functools.cache
def _formats_by_key() -> dict[str, list[tuple[str, str, str]]]:
    """Return kind, prefix and remainder of all formats by lookup key, parsed on first use."""
    formats: dict[str, list[tuple[str, str, str]]] = {}
    for line in _PREFIXED.strip().splitlines():
        kind, *prefixes, body = line.split()
        for prefix in prefixes:
            formats.setdefault(prefix[:_PREFIX_KEY_CHARS], []).append((kind, prefix, body))
    return formats


@functools.cache
def _compile_format(prefix: str, body: str) -> re.Pattern[str]:
    # Compile each format when a text first starts with its prefix: compiling all takes longer than most programs run.
    return re.compile(re.escape(prefix) + f"({body})", re.ASCII)


_SHAPES = LazyRegex(
    r"(?P<azure>[\w~.]{3}\dQ~[\w~.-]{31,34}(?![\w~-]))"
    r"|(?P<discord>[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,38}(?![\w.-]))"
    r"|(?P<mailchimp>[0-9a-f]{32}-us\d{1,2}(?!\w))|(?P<maxmind>[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk(?!\w))"
    r"|(?P<terraform>[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,70})"
    r"|(?P<azure_key>[A-Za-z0-9]{52}JQQJ9[9DH][A-Za-z0-9]{26}(?![\w+/])|[A-Za-z0-9]{42}AzSe[A-Da-d][A-Za-z0-9]{5}(?!\w)"
    r"|[\w-]{44}AzFu[\w-]{5}[AQgw]==|[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}(?!\w))",
    re.ASCII,
)
_AZURE_KEY_SIZES = frozenset((52, 54, 84))


def find_by_format(text: str, runs: bytes, start: int, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of secrets in a provider's format.

    `runs` is the text translated by `RUN_TABLE`, and `start` the first index of `LONG_RUN` in it.
    """
    formats = _formats_by_key()
    has_shapes = None
    while start >= 0:
        end = runs.find(b" ", start)
        if end < 0:
            end = len(runs)
        first = start
        if start and (mark := text[start - 1]) in _MARKS:
            _find_after_marker(text, start, findings)
            first += _ESCAPED.get(mark, 0)
        opening = text[first : first + _PREFIX_KEY_CHARS]
        for kind, prefix, body in formats.get(opening, ()):
            if text.startswith(prefix, first) and (hit := _compile_format(prefix, body).match(text, first)):
                if not _looks_generated(kind, hit[1], len(prefix) <= 3):
                    continue
                findings.append((kind, *hit.span()))
                break
        else:
            size = end - first
            if size > 35:
                if has_shapes is None:
                    has_shapes = "~" in text or "-us" in text or "_mmk" in text or ".atlasv1." in text
                is_likely = has_shapes or opening[0] in "MNO" or size in _AZURE_KEY_SIZES
                shaped = _SHAPES.match(text, first) if is_likely else None
                if shaped and not hints.is_placeholder(shaped[0]):
                    findings.append((shaped.lastgroup or "", *shaped.span()))
            elif size > 25 and opening[0] in "13" and _is_wallet(text[first:end]):
                findings.append(("wallet", first, end))
            if size >= 24 and first and text[first - 1] in _VALUE_OPENINGS and _has_vendor_name(text, first):
                value = text[first:end].rstrip(".")
                if hints.is_random(value, 24) and not hints.is_sequential(value) and not hints.is_code(value):
                    findings.append(("api_key", first, first + len(value)))
        start = runs.find(LONG_RUN, end) if len(runs) - end > 16 else -1
    if "hook" in text:
        findings += [
            ("webhook", _address_start(text, hit.start()), hit.end())
            for hit in _HOOKS.finditer(text)
            if not hints.is_placeholder(hit[0][-40:])
        ]


_VENDORS = hints.word_set(
    """abstractapi accuweather agora aiven alchemy algolia amplitude assemblyai autodesk aviationstack bitly braintree
    browserstack bugsnag calendly censys clarifai clearbit clickup clockify cloudconvert cloudinary codacy codeclimate
    coinbase confluent coveralls crowdin customerio datadog deepgram deepl docusign elevenlabs eventbrite fastly
    finnhub foursquare freshdesk fullcontact geocodio giphy helpscout hunterio hypertrack imgbb infura intercom
    ipgeolocation ipinfo ipstack kraken launchdarkly lokalise loggly mailboxlayer mailjet mapquest meraki messagebird
    mixpanel moralis newsapi nytimes onesignal opencage opsgenie optimizely pagerduty pipedrive pixabay plaid
    postmark pusher quickbase rapidapi rollbar sauce scrapingbee securitytrails segment serpapi serpstack shodan
    shodanio signalwire sourcegraph splunk squarespace statuspage stormglass sumologic tatum telnyx tomorrowio
    travisci trello unsplash uploadcare urlscan virustotal weatherapi weatherbit weatherstack webflow workato
    zendesk zenserp zerobounce"""
)
"""Services whose keys have no prefix. Names of hosts of code are absent: beside them stand commits."""


_VALUE_OPENINGS = frozenset("\"' :=")
_VENDOR_ENDINGS = frozenset(vendor[-3:] for vendor in (*_VENDORS, "api", "app", "auth", "access"))


def _has_vendor_name(text: str, start: int) -> bool:
    """Return whether a vendor's name is assigned the value at an index: `sourcegraph: ...`."""
    if text[max(0, start - 12) : start].rstrip("\"' :=)]")[-3:].lower() not in _VENDOR_ENDINGS:  # fast path
        return False
    name = text[max(0, start - 44) : start].rstrip("\"' ")
    if name[-1:] not in (":", "="):
        return False
    words = [word for word in hints.split_name(name.rstrip("\"' :=)]")) if word not in ("api", "app", "auth", "access")]
    return any("".join(words[-count:]) in _VENDORS for count in (1, 2))


def _address_start(text: str, start: int) -> int:
    """Return the start of the URL that contains this index."""
    opening = text.rfind("https://", max(0, start - 80), start)
    return opening if opening >= 0 and not any(map(str.isspace, text[opening:start])) else start


def _find_after_marker(text: str, start: int, findings: list[tuple[str, int, int]]) -> None:
    kind, before, prefix, body = _AFTER.get(text[max(0, start - 2) : start], ("", "", "", ""))
    if not kind or not text.startswith(prefix, start):
        return
    hit = _compile_format(prefix, body).match(text, start)
    if hit and not hints.is_placeholder(hit[0][-40:]):
        marker_match = _compile_format("", rf"[\s\S]*?(?P<before>{before})").fullmatch(text[max(0, start - 18) : start])
        if marker_match:
            findings.append((kind, marker_match.start("before") + max(0, start - 18), hit.end()))


def _looks_generated(kind: str, body: str, must_be_random: bool) -> bool:
    if must_be_random and not hints.is_random(body):
        return False
    if hints.is_placeholder(body) or hints.is_low_entropy(body):
        return False
    return kind not in _SAMPLED or not hints.is_sequential(body)


def _is_wallet(address: str) -> bool:
    """Return whether a text is a legacy Bitcoin address with a valid checksum."""
    import hashlib  # lazy: needed for texts that look like one only

    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    if not set(address) <= set(alphabet):
        return False
    number = 0
    for c in address:
        number = number * 58 + alphabet.index(c)
    raw = number.to_bytes(27, "big")[2:]
    return hashlib.sha256(hashlib.sha256(raw[:21]).digest()).digest()[:4] == raw[21:]


_KEY_LINE = LazyRegex(rf"-----(BEGIN|END) [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----|\n{hints.BARRIER} |\Z")
_KEY_BODY = LazyRegex(r"[A-Za-z0-9+/=]{16,}+\s{0,4}")


def find_private_keys(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield private keys between their two lines.

    Of a truncated key, yield everything on the key's side of the line.
    """
    begin_line = None
    for header in _KEY_LINE.finditer(text):
        if header[1] == "BEGIN":
            begin_line = begin_line or header
        elif begin_line is not None:
            if header.start() - begin_line.end() > 40:
                yield "private_key", begin_line.start(), header.end() if header[1] else header.start()
            begin_line = None
        elif header[1]:
            start = header.start()
            for line in reversed(text[max(0, start - 8192) : start].splitlines(keepends=True)):
                if not _KEY_BODY.fullmatch(line):
                    break
                start -= len(line)
            yield "private_key", start, header.end()
