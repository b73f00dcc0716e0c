#include "tests/sim/instructions.h"

#include <fmt/format.h>
#include <bit>
#include <cmath>
#include <chrono>
#include <fstream>
#include <map>
using namespace kiln; using namespace kiln::runtime; using namespace kiln::runtime::sim;
static double ulps(uint64_t x, uint64_t y){ float a=std::bit_cast<float>((uint32_t)x), b=std::bit_cast<float>((uint32_t)y); if(std::isnan(a)&&std::isnan(b)) return 0; auto o=[](float f){int32_t i=std::bit_cast<int32_t>(f); return (double)(i<0? (int64_t)INT32_MIN - i : i);}; return std::abs(o(a)-o(b)); }
int main(int argc,char**argv){
  auto sim=Device::open("sim:a100-sxm4-80gb");
  auto gpu=Device::open("cuda:0");
  int bad=0,good=0,unsup=0; double tg=0,ts=0; std::string only=argc>1?argv[1]:"";
  std::map<std::string,int> seen;
  for(auto&c:instruction_cases()){ if(!only.empty()&&c.text.find(only)==std::string::npos) continue; if(seen[c.text+c.types]++) continue;
    auto in=instruction_inputs(c); std::vector<uint64_t> g,s; 
    auto t0=std::chrono::steady_clock::now();
    try{ g=run_instruction(*gpu,c,in);}catch(std::exception&e){ fmt::print("GPU {} [{}]: {}\n",c.text,c.types,std::string(e.what()).substr(0,300)); ++unsup; continue; }
    auto t1=std::chrono::steady_clock::now();
    try{ s=run_instruction(*sim,c,in);}catch(std::exception&e){ fmt::print("SIM {} [{}]: {}\n",c.text,c.types,std::string(e.what()).substr(0,400)); ++unsup; sim=Device::open("sim:a100-sxm4-80gb"); continue; }
    auto t2=std::chrono::steady_clock::now(); tg+=std::chrono::duration<double>(t1-t0).count(); ts+=std::chrono::duration<double>(t2-t1).count();
    size_t n=0,first=0; double worst=0; for(size_t i=0;i<g.size();++i){ bool diff = c.is_exact? g[i]!=s[i] : (ulps(g[i],s[i])>c.ulps && !(std::abs(std::bit_cast<float>((uint32_t)g[i])-std::bit_cast<float>((uint32_t)s[i]))<=c.absolute)); if(!c.is_exact) worst=std::max(worst,ulps(g[i],s[i])); if(diff){ if(!n) first=i; ++n; } }
    if(n){ ++bad; fmt::print("DIFF {} [{}] {}/{}: a={:#x} b={:#x} c={:#x} gpu={:#x} sim={:#x}",c.text,c.types,n,g.size(),in.a[first],in.b[first],in.c[first],g[first],s[first]); 
      size_t shown=0; for(size_t i=first+1;i<g.size()&&shown<2;++i) if(c.is_exact? g[i]!=s[i]:ulps(g[i],s[i])>c.ulps){ fmt::print(" | {:#x} {:#x} {:#x} gpu={:#x} sim={:#x}",in.a[i],in.b[i],in.c[i],g[i],s[i]); ++shown;} fmt::print("\n"); } else ++good;
    if(!c.is_exact) fmt::print("near {} worst {} ulps\n",c.text,worst);
  }
  fmt::print("good {} bad {} unsupported {} gpu {:.2f}s sim {:.2f}s\n",good,bad,unsup,tg,ts);
}
